"""Runs a plan on one device: one ragged target forward, choose and verify, then the next drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT
from nextn.engine.executor import ExecutorInfo, Ran
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take
from nextn.ops.base import Draw
from nextn.request import GRAMMAR_ERROR, Failure, TokenLogprob, failed_in
from nextn.sampling.isolate import isolated
from nextn.sampling.logprobs import Asked, prompt_logprobs, token_logprobs
from nextn.sampling.sampler import draw
from nextn.scheduler.plan import Plan, SpanPlan, SpanResult, StepResult
from nextn.speculative.base import Drafted, Drafter, DraftRequest, DraftSpan
from nextn.speculative.forced import draft_in_grammars
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import Verified, Verifier, VerifySpan, grammatical
from nextn.speculative.work import StepWork

NOTHING = Verified([], [])


class Runner:
    """The executor of one process (`nextn.engine.executor`): a step has run when it was launched."""

    waited = 0.0

    def __init__(
        self,
        info: ExecutorInfo,
        model: Model,
        pool: KVPool,
        drafter: Drafter,
        draw: Draw = draw,
        accept_length: float | None = None,
    ) -> None:
        """draw: what chooses among logits; a backend may bring its own. accept_length: simulated."""
        self.info, self.model, self.pool, self.drafter = info, model, pool, drafter
        self.verifier = Verifier(draw, accept_length)
        self.states: dict[str, RequestState] = {}

    def add(self, state: RequestState) -> None:
        assert state.rid not in self.states
        state.begin()
        self.states[state.rid] = state

    def drop(self, rid: str) -> None:
        self.drafter.drop(self.states.pop(rid).drafting)

    def launch(self, plan: Plan) -> Ran:
        return Ran(self.run(plan))

    def check(self) -> None:
        pass

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        states = [self._state(span, plan.cutoff) for span in plan.spans]
        spans = [Span(r.tokens, r.start, r.pages, r.draft.paths()) for r in states]
        hidden = self.model.forward(self.model.batch(spans, self.pool.page_size), self.pool)
        verified, raw = self._verify(hidden, states)
        verified = [
            v if r.grammar is None or not r.chooses else grammatical(r.grammar, v)
            for r, v in zip(states, verified, strict=True)
        ]
        self._compact(states, [v.path for v in verified])
        logprobs = _output_logprobs(raw, states, verified)
        scored = self._prompt_logprobs(hidden, states)
        made = self._draft(hidden, states, verified, plan.keep)
        results = []
        rows = decoding = nodes = context = 0
        for i, (r, v) in enumerate(zip(states, verified, strict=True)):
            rows += len(r.tokens)
            if r.chooses:
                decoding += 1
                nodes += len(r.draft.tokens)
                context += r.start
            r.history += v.tokens
            error = v.error or made.failed.get(i)
            if r.grammar is not None and r.grammar.failed is not None:
                error = error or Failure(GRAMMAR_ERROR, r.grammar.failed)
            results.append(
                SpanResult(
                    v.tokens,
                    NO_DRAFT if error is not None else made.drafts[i],
                    logprobs[i].found,
                    scored[i].found or [],
                    v.ended,
                    error or logprobs[i].error or scored[i].error,
                )
            )
        work = StepWork(rows, made.extended, tuple(made.passes), decoding, nodes, context)
        return StepResult(results, work)

    def _state(self, span: SpanPlan, cutoff: Cutoff | None) -> RequestState:
        """The request of a span of the plan, about to go on as planned."""
        state = self.states[span.rid]
        state.start, state.known, state.draft = span.start, span.known, span.draft
        state.tokens = [*state.history[span.start : span.start + span.known], *span.draft.tokens]
        state.chooses, state.num_steps, state.scores = span.chooses, span.num_steps, span.scores
        state.extend, state.draft_from = span.extend, span.draft_from
        state.cutoff = cutoff if span.cut else None
        state.pages[span.first_page :] = span.pages
        return state

    def _verify(self, hidden: Tensor, states: Sequence[RequestState]) -> tuple[list[Verified], Tensor | None]:
        """Of every request the nodes that hold and the tokens it commits; neither for a part of a prompt.
        And a copy of the logits of those that want log-probabilities, as the others are written over."""
        asked: list[tuple[RequestState, int]] = []  # those that choose, with their root's row of `hidden`
        index: list[int] = []
        wanted: list[int] = []
        at = 0
        for r in states:
            at += len(r.tokens)
            if r.chooses:
                root = at - len(r.draft.tokens) - 1
                if r.params.logprobs is not None:
                    wanted.extend(range(len(index), len(index) + at - root))
                index.extend(range(root, at))
                asked.append((r, root))
        if not index:
            return [NOTHING for _ in states], None
        logits = self.model.logits(take(self.model, hidden, index))
        raw = logits[wanted] if wanted else None

        def verify(some: Sequence[tuple[RequestState, int]]) -> list[Verified]:
            own = logits
            if some is not asked:  # they have been written over
                places = [i for r, root in some for i in range(root, root + len(r.draft) + 1)]
                own = self.model.logits(take(self.model, hidden, places))
            return self.verifier.verify(own, [VerifySpan(r, r.draft, r.drafting.chances) for r, _ in some])

        def failed(_: tuple[RequestState, int], error: Exception) -> Verified:
            return Verified([], [], error=failed_in("verification", error))

        verified = iter(isolated(verify, asked, failed, "verification"))
        return [next(verified) if r.chooses else NOTHING for r in states], raw

    def _prompt_logprobs(self, hidden: Tensor, states: Sequence[RequestState]) -> list[_Logprobs]:
        wanted: list[tuple[int, int]] = []  # places in `states`, with their first row of `hidden`
        at = 0
        for i, r in enumerate(states):
            if r.scores:
                wanted.append((i, at))
            at += len(r.tokens)

        def logits(places: list[int]) -> Tensor:
            return self.model.logits(take(self.model, hidden, places))

        def compute(some: Sequence[tuple[int, int]]) -> list[_Logprobs]:
            asked = [a for i, first in some for a in _asked_of_prompt(states[i], first)]
            logprobs = prompt_logprobs(logits, asked)
            return [_Logprobs([next(logprobs) for _ in states[i].scores]) for i, _ in some]

        return _each(compute, wanted, len(states))

    def _draft(
        self, hidden: Tensor, states: Sequence[RequestState], verified: Sequence[Verified], keep: bool
    ) -> Drafted:
        """The next drafts. Requests that are in error, or do not go on in this step, have no part in it.
        keep: see `Plan`."""
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
        """What the step settled for each request."""
        out = []
        at = 0
        for r, v in zip(states, verified, strict=True):
            path, tokens = v.path, v.tokens
            # Rejected guesses are left out; what follows the last true position is the bonus token.
            known = r.known
            following = [*r.tokens[1:known], *(tokens if r.chooses else (r.following,))]
            true: Sequence[int] = range(at, at + known + len(path))
            if r.draft.parents is not None:
                true = [*range(at, at + known), *(at + known + node for node in path)]
            # A request that ends with this step needs no drafts; nor may drafts outrun its limit.
            ended = v.ended or v.error is not None or not r.end_ids.isdisjoint(tokens)
            room = r.room - len(tokens) - 1
            num_steps = 0 if ended else max(0, min(r.num_steps, room))
            pages = r.pages[r.draft_from // self.pool.page_size :] if r.draft_from else r.pages
            state, start = r.drafting, r.start - r.draft_from
            out.append(
                DraftSpan(
                    r, state, start, true, following, pages, num_steps, tokens, room, r.draft_from, r.extend,
                    r.cutoff,
                )
            )  # fmt: skip
            at += len(r.tokens)
        return out

    def _compact(self, states: Sequence[RequestState], accepted: Sequence[Sequence[int]]) -> None:
        """Moves the target's cache entries of accepted nodes to the slots of their positions. In a chain they
        lie there already."""
        source: list[int] = []
        target: list[int] = []
        for r, path in zip(states, accepted, strict=True):
            for depth, node in enumerate(path, start=1):
                if node + 1 != depth:
                    source.append(self.pool.slot(r.pages, r.start + node + 1))
                    target.append(self.pool.slot(r.pages, r.start + depth))
        if source:
            self.pool.move(source, target, self.model.config.num_hidden_layers)


class _Logprobs(NamedTuple):
    """One request's log-probabilities, None if it wants none."""

    found: list[TokenLogprob] | None = None
    error: Failure | None = None


NO_LOGPROBS = _Logprobs()


def _output_logprobs(
    raw: Tensor | None, states: Sequence[RequestState], verified: Sequence[Verified]
) -> list[_Logprobs]:
    """Of the tokens that each request commits. `raw`: see `Runner._verify`."""
    wanted: list[tuple[int, int]] = []  # places in `states`, with their first row of `raw`
    if raw is not None:
        at = 0
        for i, r in enumerate(states):
            if r.chooses and r.params.logprobs is not None:
                wanted.append((i, at))
                at += len(r.draft) + 1

    def compute(some: Sequence[tuple[int, int]]) -> list[_Logprobs]:
        assert raw is not None
        asked: list[Asked] = []
        for i, first in some:
            chosen_at = (0, *(node + 1 for node in verified[i].path))
            top = states[i].params.logprobs or 0
            # A request in error may commit nothing.
            asked += [Asked(first + n, t, top) for n, t in zip(chosen_at, verified[i].tokens, strict=False)]
        logprobs = iter(token_logprobs(raw, asked))
        return [_Logprobs([next(logprobs) for _ in verified[i].tokens]) for i, _ in some]

    return _each(compute, wanted, len(states))


def _each(
    compute: Callable[[Sequence[tuple[int, int]]], list[_Logprobs]],
    wanted: Sequence[tuple[int, int]],
    n: int,
) -> list[_Logprobs]:
    """Of every request; of those that are not `wanted` nothing."""
    logprobs = [NO_LOGPROBS] * n
    if wanted:
        found = isolated(
            compute,
            wanted,
            lambda _, e: _Logprobs(error=failed_in("log-probabilities", e)),
            "log-probabilities",
        )
        for (i, _), each in zip(wanted, found, strict=True):
            logprobs[i] = each
    return logprobs


def _asked_of_prompt(state: RequestState, first: int) -> list[Asked]:
    after, top = state.start + 1, state.params.prompt_logprobs or 0
    return [Asked(first + i, state.history[after + i], top) for i in state.scores]
