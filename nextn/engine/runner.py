"""Runs a plan on one device: one forward pass of the target, choices and verification, the next drafts."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Sequence
from itertools import compress
from operator import not_

import torch
from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT
from nextn.engine import logprobs as logprobs_of
from nextn.engine.executor import ExecutorInfo, ExpertCounts, Ran
from nextn.engine.expert_recorder import ShardWindow
from nextn.engine.plain_step import plain_steps
from nextn.engine.shared_pass import SharedPass
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Chooser, CountsExperts, Model, take
from nextn.ops.base import Draw
from nextn.request import GRAMMAR_ERROR, Failure, failed_in
from nextn.sampling.isolate import isolated
from nextn.sampling.sampler import draw
from nextn.scheduler.plan import Plan, SpanPlan, SpanResult, StepResult
from nextn.speculative.base import Drafted, Drafter, DraftRequest, DraftSpan
from nextn.speculative.compact import compact
from nextn.speculative.forced import draft_in_grammars
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import Verified, Verifier, VerifySpan, grammatical
from nextn.speculative.work import StepWork
from nextn.trace import TRACE
from nextn.waits import Waits

NOTHING = Verified([], [])
Rooted = tuple[RequestState, int]  # a request for which tokens are chosen, and its root's row in the step


class Runner:
    """The executor of one process (`nextn.engine.executor`): `launch` returns after the step has run."""

    awake, wakes = False, None  # see `Executor`

    def __init__(
        self,
        info: ExecutorInfo,
        model: Model,
        pool: KVPool,
        drafter: Drafter,
        draw: Draw = draw,
        accept_length: float | None = None,
        chooser: Chooser | None = None,
        together: SharedPass | None = None,
        waits: Callable[[], Waits] | None = None,
    ) -> None:
        """draw: the function that chooses tokens from logits; a backend may have its own. accept_length:
        simulated. chooser: the model, if it can choose tokens faster than it can return logits. together: set
        if other engines share its experts. waits: totals of this rank, if there are others."""
        self.together, self.world = together, None if together is None else together.world
        self.info, self.model, self.pool, self.drafter = info, model, pool, drafter
        self.chooser, self._waits = chooser, waits
        self._counts = model.expert_counts if isinstance(model, CountsExperts) else None
        self.verifier = Verifier(draw, accept_length)
        alone = together is None and accept_length is None
        self.plain = plain_steps(model, pool, drafter) if alone else None
        self.states: dict[str, RequestState] = {}

    def add(self, state: RequestState) -> None:
        assert state.rid not in self.states
        state.begin()
        if self.plain is not None:
            self.plain.add(state)
        self.states[state.rid] = state

    def drop(self, rid: str) -> None:
        self.drafter.drop(self.states.pop(rid).drafting)

    def launch(self, plan: Plan) -> Ran:
        if self._waits is None:
            return Ran(self.run(plan))
        before, found = self._waits(), self.run(plan)
        return Ran(dataclasses.replace(found, waits=self._waits().since(before)))

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        self.pool.read(pages, into)

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        self.pool.write(pages, data)

    def page_memory(self) -> Tensor | None:
        return self.pool.data if self.pool.data.device.type == "cpu" else None

    def check(self) -> None:
        pass

    def refuse(self, reason: str) -> None:
        pass

    def expert_counts(self) -> ExpertCounts | None:
        counts = self._counts and self._counts()
        return counts if counts and counts[0].size else None

    def shard_load(self) -> ShardWindow | None:
        return None if self.world is None else ShardWindow(self.expert_counts, self.world)

    def run(self, plan: Plan) -> StepResult:
        ended = [span.ahead and self.states[span.rid].ended for span in plan.spans]
        if True not in ended:
            return self._run_live(plan)
        live = [*compress(plan.spans, map(not_, ended))]
        if not live and self.together is None:  # with shared experts, other engines wait for this step
            return StepResult([SpanResult([], NO_DRAFT)] * len(ended), StepWork(0))
        ran = self._run_live(dataclasses.replace(plan, spans=live))
        spans = iter(ran.spans)
        return StepResult([SpanResult([], NO_DRAFT) if gone else next(spans) for gone in ended], ran.work)

    def _run_live(self, plan: Plan) -> StepResult:
        """Runs a plan whose requests have not ended."""
        lap = TRACE.laps("runner")
        states = []
        for span in plan.spans:
            states.append(state := self.states[span.rid])
            if span.pages:
                state.pages[span.first_page :] = array("i", span.pages)
        lap("prepare")
        found = None if self.plain is None else self.plain.run(states, plan)
        if found is not None:
            lap("native step")
            return found
        for state, span in zip(states, plan.spans, strict=True):
            _begin(state, span, plan.cutoff)
        return self._run(states, plan)

    @torch.inference_mode()
    def _run(self, states: Sequence[RequestState], plan: Plan) -> StepResult:
        lap = TRACE.laps("runner")
        spans = [Span(r.tokens, r.start, r.pages, r.draft.paths()) for r in states]
        hidden = self._forward(spans)
        lap("forward")
        if hidden is None:
            return StepResult([])
        verified, raw = self._verify(hidden, states)
        verified = [
            v if r.grammar is None or not r.chooses else grammatical(r.grammar, v)
            for r, v in zip(states, verified, strict=True)
        ]
        compact(self.pool, self.model.config.num_hidden_layers, states, [v.path for v in verified])
        logprobs = logprobs_of.output(raw, states, verified)
        scored = logprobs_of.prompts(self.model, hidden, states)
        lap("choose and verify")
        made = self._draft(hidden, states, verified, plan.keep)
        lap("draft")
        results = []
        rows = decoding = nodes = context = 0
        for i, (r, v) in enumerate(zip(states, verified, strict=True)):
            rows += len(r.tokens)
            if r.chooses:
                decoding += 1
                nodes += len(r.draft.tokens)
                context += r.start
            error = v.error or made.failed.get(i)
            if r.grammar is not None and r.grammar.failed is not None:
                error = error or Failure(GRAMMAR_ERROR, r.grammar.failed)
            draft = NO_DRAFT if error is not None else made.drafts[i]
            error = error or logprobs[i].error or scored[i].error
            found = logprobs[i].found, scored[i].found or []
            results.append(SpanResult(v.tokens, draft, *found, v.ended, error))
            r.commit(results[-1])
        work = StepWork(rows, made.extended, tuple(made.passes), decoding, nodes, context)
        return StepResult(results, work)

    def _forward(self, spans: Sequence[Span]) -> Tensor | None:
        if self.together is not None:
            return self.together.forward(spans)
        return self.model.forward(self.model.batch(spans, self.pool.page_size), self.pool)

    def _verify(self, hidden: Tensor, states: Sequence[RequestState]) -> tuple[list[Verified], Tensor | None]:
        """For every request, the accepted nodes and the tokens that it commits; nothing for a prompt chunk.
        Also a copy of the logits of requests that want log-probabilities, because verification overwrites
        logits."""
        by_logits: list[Rooted] = []
        by_model: list[Rooted] = []  # the model itself chooses their tokens
        at = 0
        for r in states:
            at += len(r.tokens)
            if r.chooses:
                drawn = self.chooser is not None and _span(r).takes_draws
                (by_model if drawn else by_logits).append((r, at - len(r.draft.tokens) - 1))
        if not by_logits and not by_model:
            return [NOTHING for _ in states], None
        logits, tokens = self._logits(hidden, by_logits, by_model)
        raw = logprobs_of.copied(logits, [r for r, _ in by_logits])

        def verify(some: Sequence[Rooted]) -> list[Verified]:
            own = logits
            if some is not by_logits:  # after a failure; the logits have been overwritten
                own = self.model.logits(take(self.model, hidden, _rows(some)))
            return self.verifier.verify(own, [_span(r) for r, _ in some])

        def failed(_: Rooted, error: Exception) -> Verified:
            return Verified([], [], error=failed_in("verification", error))

        verified = isolated(verify, by_logits, failed, "verification")
        verified += self.verifier.equal([_span(r) for r, _ in by_model], tokens)
        found = {r.rid: v for (r, _), v in zip([*by_logits, *by_model], verified, strict=True)}
        return [found.get(r.rid, NOTHING) for r in states], raw

    def _logits(
        self, hidden: Tensor, by_logits: Sequence[Rooted], by_model: Sequence[Rooted]
    ) -> tuple[Tensor, Sequence[int]]:
        """After the root and every node: the logits of `by_logits`, the target's choices of `by_model`."""
        rows = _rows(by_logits)
        if self.chooser is None or not by_model:
            return self.model.logits(take(self.model, hidden, rows)), ()
        draws = [draw for r, _ in by_model for draw in _span(r).draws()]
        return self.chooser.choices(take(self.model, hidden, rows + _rows(by_model)), len(rows), draws)

    def _draft(
        self, hidden: Tensor, states: Sequence[RequestState], verified: Sequence[Verified], keep: bool
    ) -> Drafted:
        """The next drafts. Requests with an error get none. keep: see `Plan`."""
        if not keep:
            self.drafter.forget()
        each = enumerate(zip(states, verified, strict=True))
        live = [
            i for i, (r, v) in each if v.error is None and (r.extend or keep) and (v.tokens or not r.chooses)
        ]
        if not live:
            return Drafted([NO_DRAFT for _ in states])
        spans = self._draft_spans(states, verified)
        if len(live) == len(states):
            return draft_in_grammars(self.drafter, DraftRequest(hidden, spans))
        made = draft_in_grammars(self.drafter, DraftRequest(hidden, [spans[i] for i in live]))
        drafts = [NO_DRAFT for _ in states]
        for i, draft in zip(live, made.drafts, strict=True):
            drafts[i] = draft
        return made._replace(drafts=drafts, failed={live[n]: error for n, error in made.failed.items()})

    def _draft_spans(self, states: Sequence[RequestState], verified: Sequence[Verified]) -> list[DraftSpan]:
        """For each request, the positions that the step committed, for the drafter."""
        out = []
        at = 0
        for r, v in zip(states, verified, strict=True):
            path, tokens = v.path, v.tokens
            # Rejected drafts are left out. The token after the last committed position is the bonus token.
            known = r.known
            following = [*r.tokens[1:known], *(tokens if r.chooses else (r.following,))]
            rows: Sequence[int] = range(at, at + known + len(path))
            if r.draft.parents is not None:
                rows = [*range(at, at + known), *(at + known + node for node in path)]
            # A request that ends with this step needs no drafts, and drafts must not exceed its limit.
            ended = v.ended or v.error is not None or not r.end_ids.isdisjoint(tokens)
            room = r.room - len(tokens) - 1
            num_steps = 0 if ended else max(0, min(r.num_steps, room))
            pages = r.pages[r.draft_from // self.pool.page_size :] if r.draft_from else r.pages
            state, start = r.drafting, r.start - r.draft_from
            out.append(
                DraftSpan(
                    r, state, start, rows, following, pages, num_steps, tokens, room, r.draft_from, r.extend,
                    r.cutoff,
                )
            )  # fmt: skip
            at += len(r.tokens)
        return out


def _begin(state: RequestState, span: SpanPlan, cutoff: Cutoff | None) -> None:
    """Sets the request's state for the span that is about to run."""
    state.start, state.known, state.draft = span.start, span.known, span.draft
    if span.ahead:
        state.go_on(span.most_drafts)
    start = state.start
    state.tokens = [*state.history[start : start + state.known], *state.draft.tokens]
    state.chooses, state.num_steps, state.scores = span.chooses, span.num_steps, span.scores
    state.extend, state.draft_from = span.extend, span.draft_from
    state.cutoff = cutoff if span.cut else None


def _span(r: RequestState) -> VerifySpan:
    return VerifySpan(r, r.draft, r.drafting.chances)


def _rows(some: Sequence[Rooted]) -> list[int]:
    """The rows of each root and its draft in the step."""
    return [row for r, root in some for row in range(root, root + len(r.draft.tokens) + 1)]
