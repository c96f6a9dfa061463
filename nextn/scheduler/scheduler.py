"""Decides which requests run next: admission, chunked prefill, drafts under the token budget, retraction.

Pure Python, with a `KVManager` for the pages. `plan` decides about the next step, `commit` applies its
result. In a step, every request has one span of tokens: a prompt chunk, or its root and its drafts.

A plan may be made before the result of the previous one is known (`nextn.scheduler.under_way`). Two decisions
wait for that result: which request is retracted, and whether drafts are switched on or off.

The order of requests is always: higher priority first, then older first. When pages run out, the last request
in this order is retracted. So the first one always makes progress, and requests cannot starve each other.
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import time
from collections.abc import Sequence

from nextn.draft import MAX_DRAFTS, NO_DRAFT, Shape
from nextn.kvcache.manager import KVManager
from nextn.request import Failure, Output, Request, failed_in
from nextn.scheduler import groups
from nextn.scheduler.depth import Depth
from nextn.scheduler.integrity import check_requests
from nextn.scheduler.output import output, take
from nextn.scheduler.plan import Plan, SpanPlan, SpanResult, States, StepResult
from nextn.scheduler.prompt_budget import PromptBudget
from nextn.scheduler.queue import count_prompts, next_in_line, rank
from nextn.scheduler.transfers import Transfers
from nextn.scheduler.under_way import NO_SCORES, UnderWay
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.state import RequestState
from nextn.stats import EngineStats

log = logging.getLogger("nextn.engine")


class Scheduler:
    def __init__(
        self,
        kv: KVManager,
        states: States,
        *,
        prompts: PromptBudget,
        max_running: int,
        num_steps: int,
        eos_ids: frozenset[int],
        shape: Shape = Shape(),  # noqa: B008
        auto: DepthController | None = None,
    ) -> None:
        """states: of the executor. num_steps: draft depth of requests that do not set their own; 0: there is
        no drafter. With `auto` it is the maximum, and `auto` decides the depth."""
        self.kv, self.states = kv, states
        self.prompts, self.token_budget, self.max_running = prompts, prompts.tokens, max_running
        self.depth, self.shape = Depth(num_steps, auto), shape
        self._beyond = shape.beyond
        self.eos_ids = eos_ids
        self.waiting: list[Request] = []  # sorted by rank
        self.running: list[Request] = []  # sorted by rank
        self.by_rid: dict[str, Request] = {}
        self.transfers = Transfers(kv)
        self._num_fixed = 0  # number of running requests whose draft depth is not automatic
        self._kept = False  # `keep` of the last plan
        self._blocked: str | None = None  # the request that waits for pages; those behind it wait too
        self._under_way = UnderWay(self.shape)
        # During a commit: how many requests had each outcome, see `SpecStats.add`.
        self._decoded: dict[tuple[int, int, int], int] = {}
        self.stats = EngineStats(total_tokens=kv.total_tokens)

    # --- in and out -------------------------------------------------------------------------

    def add(self, req: Request) -> None:
        assert req.rid not in self.by_rid
        self.by_rid[req.rid] = req
        stops = frozenset(req.params.stop_token_ids)
        # Usually one set for all requests: separate sets would be fetched from memory again in every step.
        req.end_ids = stops if req.params.ignore_eos else self.eos_ids | stops if stops else self.eos_ids
        self.depth.enter(req)
        groups.enter(req)
        bisect.insort(self.waiting, req, key=rank)

    def abort(self, rid: str) -> bool:
        """Drops a request and frees its pages. False if there is no request with this id."""
        req = self.by_rid.pop(rid, None)
        if req is None:
            return False
        if req in self.running:
            self._stop(req)
        elif not self.transfers.give_up(rid):
            self.waiting.remove(req)
        groups.leave(req)
        self.stats.aborted += 1
        return True

    def _stop(self, req: Request, share: bool = True) -> None:
        """Stops running the request and releases its pages. share: its committed pages are put into the
        prefix cache."""
        self._leave_steps(req)
        self.kv.release(req, share)

    def _leave_steps(self, req: Request) -> None:
        self.running.remove(req)
        self._under_way.leave(req)
        self._num_fixed -= not req.automatic
        self.states.drop(req.rid)

    def _join_steps(self, req: Request) -> None:
        bisect.insort(self.running, req, key=rank)
        self._num_fixed += not req.automatic
        tokens = list(req.tokens)
        state = RequestState(req.rid, req.params, tokens, req.num_prompt, req.limit, req.end_ids, req.grammar)
        self.states.add(state)

    # --- plan -------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """The next step. Without spans if the result of the previous plan has to be committed first."""
        spans: list[SpanPlan] = []
        keep = self.depth.auto is not None and self.depth.auto.keeping
        under_way = self._under_way
        if under_way.full or (under_way and keep != self._kept):
            return Plan(spans)
        if keep and not self._kept:
            for req in self.running:
                self.kv.begin_to_keep(req)
        self._kept = keep
        decoding, prefilling = under_way.split(self.running)
        # While prompts wait, an eighth of the budget is reserved for them, even if many requests decode.
        share = self.prompts.eighth if prefilling or self.waiting else 0
        spare = self.token_budget - share - len(decoding)
        assert spare >= 0, "max_running leaves every running request its root"
        used = 0
        for req in decoding:
            if not req.pages:
                continue  # retracted in this loop, to free pages for an earlier request
            if (span := self._plan_span(req, 1, spans, spare)) is not None:
                drafts = span.drafts
                spare -= drafts
                used += 1 + drafts
        budget = self.token_budget - used
        if prefilling or self.waiting:
            prompts = count_prompts(prefilling, self.waiting)
            short, some = self.prompts.eighth, (*prefilling, *self.waiting[:1])
            scored = any(self._under_way.unscored(r) is not None for r in some)
            budget = min(budget, self.prompts.share(len(spans), prompts, scored))
            if self._blocked not in self.by_rid and any(under_way.left(r) > short for r in some):
                budget -= self._extend_all(prefilling, max(1, budget // 2), spans, short)
            self._extend_all(prefilling, budget, spans)
        auto = self.depth.auto
        under_way.add(spans, self.by_rid, auto is not None and auto.drafting)
        return Plan(spans, self.depth.cutoff(spans), keep)

    def _extend_all(
        self, prefilling: Sequence[Request], budget: int, spans: list[SpanPlan], max_left: int | None = None
    ) -> int:
        """Plans prompt chunks, first of running requests, then of waiting ones. The first request gets at
        least one token. max_left: skips requests with more prompt tokens left; None: no limit. Returns the
        part of the budget that was used."""
        whole, planned = budget, {span.rid for span in spans}
        for req in prefilling:
            runs = req in self.running and req.rid not in planned
            if runs and budget > 0 and (max_left is None or self._under_way.left(req) <= max_left):
                budget -= self._extend(req, budget, spans, budget == whole)
        while budget > 0 and len(self.running) + len(self.transfers.fetching) < self.max_running:
            new = next_in_line(self.waiting, self.kv, max_left)
            if new is None:
                break
            if not self._admit(new):
                self._blocked = new.rid
                break
            self._blocked = None
            self.waiting.remove(new)
            if new.fetch:
                self.transfers.begin(new)
                continue
            self._join_steps(new)
            taken = self._extend(new, budget, spans, budget == whole)
            budget -= taken
            if not taken:
                break
        return whole - budget

    def _admit(self, req: Request) -> bool:
        """Admits a request if the pages that it will need are free besides those that running requests will
        need. It gets its cached prefix, and pages for its whole prompt if it fetches them."""
        first = req.num_output == 0 and req.retractions == 0
        self.kv.admit(req, max_cached=self._under_way.unscored(req))
        others = (*self.running, *self.transfers.fetching.values())
        promised = sum(self._pages_to_come(r) for r in others)
        if (self.running or self.transfers) and self._pages_to_come(req) + promised > self.kv.available:
            self.kv.release(req)
            return False
        if first:
            self._begin(req, req.cached)
        if req.fetch:
            fits = self.kv.reserve(req, len(req.tokens))
            assert fits, "a request longer than the KV pool was admitted"
        return True

    def fetched(self, rid: str, cached: int = 0, error: Failure | None = None) -> list[Output]:
        """Called when the pages of a fetching request have arrived, or no more will arrive. The request
        continues with those it has, or ends with the error. cached: prompt tokens that the other engine found
        in its cache."""
        req = self.transfers.fetching[rid]
        req.queued = time.perf_counter() - req.arrived
        req.first_cached = max(req.first_cached, min(cached, req.committed))
        if error is not None:
            return [self._fail(req, error)]
        del self.transfers.fetching[rid]
        self._join_steps(req)
        return []

    def _begin(self, req: Request, cached: int) -> None:
        req.queued = time.perf_counter() - req.arrived
        req.first_cached = cached
        self.stats.prompt_tokens += req.num_prompt
        self.stats.cached_tokens += cached

    def _pages_to_come(self, req: Request) -> int:
        """Pages that a running request will need soon: for the rest of its prompt, and one more."""
        num_steps = self.depth.most(req)
        ahead = min(len(req.tokens) + 1 + 2 * num_steps, req.limit)
        ahead += min(self._beyond, self.shape.size(num_steps) + self.shape.scratch(num_steps))
        return max(0, self.kv.pages_for(ahead) + 1 - len(req.pages))

    def _extend(self, req: Request, budget: int, spans: list[SpanPlan], least: int) -> int:
        """Plans the next prompt chunk of a request: as many tokens as the budget allows, and at least
        `least`. Returns the part of the budget that was used."""
        unscored, start = self._under_way.unscored(req), self._under_way.end(req)
        room = self.token_budget - sum(span.known + span.drafts for span in spans)
        n = min(max(least, self.prompts.affordable(budget, start, unscored)), room, len(req.tokens) - start)
        span = None if n < 1 else self._plan_span(req, n, spans)
        return 0 if span is None else self.prompts.taken(start, n, len(span.scores))

    def _plan_span(self, req: Request, n: int, spans: list[SpanPlan], most: int = 0) -> SpanPlan | None:
        """Plans a span of the next n tokens and the draft, and reserves slots for them and for the drafting
        afterwards. most: maximum nodes of the draft. When pages run out, the last request in order is
        retracted. None if that was this request, or if its last span ends it or must be committed first."""
        under_way, depth, limit = self._under_way, self.depth, req.limit
        last, draft = under_way.of(req), NO_DRAFT
        if ahead := last is not None and last.chooses:  # then the following numbers are upper bounds
            most = under_way.most_drafts(last, req, most)
        else:
            draft = req.draft if last is None else draft
            draft = draft.cut(most, limit - len(req.tokens) - 1)
            most = len(draft.tokens)
        have = len(req.tokens) + ahead
        start = req.committed if last is None else last.end
        known = start + n
        end = known + most
        chooses = ahead or known == have
        room = limit - have
        wanted = depth.now(req) if req.committed >= req.draft_from else 0
        extend = wanted > 0 or (depth.num_steps > 0 and (depth.auto is None or req.hold))
        if last is not None and (ahead > room or last.extend != extend):
            return None
        num_steps = wanted if chooses else 0
        if num_steps > room - 2:
            num_steps = max(0, room - 2)
        length = end
        if num_steps > 1:
            length = max(end, known + (most if ahead else draft.depth) + self.shape.scratch(num_steps))
        if length > limit:
            length = min(length, (limit if ahead else max(limit, end)) + self._beyond)
        while not self.kv.reserve(req, length):
            if under_way:
                under_way.short = True
                return None
            victim = self.running[-1]
            self._retract(victim)
            spans[:] = [s for s in spans if s.rid != victim.rid]
            if victim is req:
                return None
        if extend and not ahead:
            self.kv.skip_drafts(req)
        first, pages = self.kv.send(req)
        scores = under_way.scores(req, start, end) if start < req.num_prompt else NO_SCORES
        # Keywords would take half of the time that the plan of a step takes.
        span = SpanPlan(
            req.rid, start, n, draft, chooses, first, pages, num_steps, scores, extend, req.draft_from,
            req.automatic and num_steps > 0, ahead, most if ahead else 0,
        )  # fmt: skip
        spans.append(span)
        return span

    def _retract(self, req: Request) -> None:
        """Releases the pages of a request and keeps its tokens. It resumes later, with the same text."""
        self._stop(req)
        req.draft = NO_DRAFT
        req.retractions += 1
        self.stats.retracted += 1
        bisect.insort(self.waiting, req, key=rank)

    # --- commit -----------------------------------------------------------------------------

    def commit(self, plan: Plan, result: StepResult, seconds: float | None = None) -> list[Output]:
        """seconds: from the end of the previous step to the end of this one, if it followed directly."""
        all_automatic = self._num_fixed == 0  # before requests end
        outputs: list[Output] = []
        requests, drafted = self._under_way.take(plan)
        for req, span, res in zip(requests, plan.spans, result.spans, strict=True):
            if req is None:
                continue
            try:
                if (out := self._commit_span(req, span, res)) is not None:
                    others = groups.ends_with(req) if out.finish_reason == "length" else ()
                    outputs += [out, *[self._end_like(out, other) for other in others]]
            except Exception as e:
                log.exception("committing request %s failed; it ends", req.rid)
                outputs.append(self._fail(req, failed_in("its commit", e)))
        if result.work is not None:
            if self.depth.auto is not None:
                self.depth.auto.stepped(result.work, seconds, all_automatic, drafted)
            if seconds is not None:
                self.prompts.took(plan.spans, result.work, seconds)
        self.stats.steps += result.ran
        self.stats.decode_steps += bool(self._decoded)
        for step, times in self._decoded.items():
            self.stats.spec.add(*step, times)
        self._decoded.clear()
        return outputs

    def _commit_span(self, req: Request, span: SpanPlan, res: SpanResult) -> Output | None:
        decoding = req.decoding
        first = not decoding and req.num_output == 0
        if res.prompt_logprobs:
            req.prompt_logprobs += res.prompt_logprobs
        accepted = len(res.tokens) - 1 if res.tokens else 0
        tokens, reason, matched = taken = take(req, res)
        true_end = span.start + span.known + accepted
        root = len(req.tokens) - 1
        self.kv.commit(req, (true_end if true_end < root else root) - req.committed)
        if span.extend:
            self.kv.extended(req)
        if req.automatic and span.draft is not NO_DRAFT:
            self.depth.note(span.draft, accepted)
        if decoding:
            step = span.draft.depth, min(accepted, tokens), tokens + (matched is not None)
            req.spec.add(*step)
            self._decoded[step] = self._decoded.get(step, 0) + 1
        self.stats.generated_tokens += tokens
        if reason is None:
            req.draft = res.draft
            if not self._under_way.resolve(req):
                self.kv.trim(req, req.committed + 1)
            if not res.tokens:
                return None
            if not decoding:
                self.kv.share(req)
        else:
            self._end(req, share=reason != "error")
        return output(req, res, taken, first, span.draft)

    def _end_like(self, out: Output, req: Request) -> Output:
        """Ends a waiting request with the output of another request that has the same prompt."""
        if req.retractions == 0:
            self._begin(req, req.num_prompt)
        self.waiting.remove(req)
        del self.by_rid[req.rid]
        groups.leave(req)
        self.stats.finished += 1
        return dataclasses.replace(
            out, rid=req.rid, spec=req.spec, queued=req.queued, cached_tokens=req.first_cached,
            retractions=req.retractions,
        )  # fmt: skip

    def _end(self, req: Request, share: bool = True) -> None:
        """share: see `_stop`."""
        if req.hold and share:
            self._leave_steps(req)
            self.transfers.hold(req)
        elif not self.transfers.give_up(req.rid):
            self._stop(req, share)
        del self.by_rid[req.rid]
        groups.leave(req)
        self.stats.finished += 1

    def _fail(self, req: Request, error: Failure) -> Output:
        """Ends a request with an error: its commit raised an exception, or its pages did not arrive."""
        if req.rid in self.by_rid:
            self._end(req, share=False)
        return output(req, SpanResult([], NO_DRAFT, error=error), (0, "error", None), first=False)

    # --- queries and checks -----------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether there are requests that have not ended."""
        return bool(self.by_rid)

    def must_step(self) -> bool:
        """Whether there are requests that do not only wait for pages to arrive."""
        return bool(self.running or self.waiting)

    def snapshot(self) -> EngineStats:
        s = self.stats
        s.running, s.used_tokens = len(self.running), self.kv.used_tokens
        s.waiting = len(self.waiting) + len(self.transfers.fetching)
        s.auto = None if self.depth.auto is None else self.depth.auto.state
        return s

    def check_integrity(self) -> None:
        """Recomputes every bookkeeping structure from scratch; AssertionError if one is wrong."""
        self.kv.check_integrity([*self.running, *self.transfers])
        check_requests(self.by_rid, self.running, self.waiting, self.transfers.fetching.values())
        assert len(self.running) <= self.max_running
        assert self._num_fixed == sum(not r.automatic for r in self.running)
        for r in self.running:
            assert len(r.draft) <= (MAX_DRAFTS if r.draft.forced else self.shape.size(self.depth.most(r)))
