"""Steps with plain requests only: a single call of the model, with the same results as `Runner`.

A plain request is verified by `exact`, has no penalties, bias, grammar or log-probabilities, and its drafts
are chains. Prompt chunks are plain too, unless their log-probabilities are wanted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from nextn.draft import NO_DRAFT, Draft
from nextn.kvcache.pool import KVPool
from nextn.models.base import Model
from nextn.models.one_call import (
    CHOOSES,
    CUT,
    EXTENDS,
    RESULT_FIELDS,
    SPAN_FIELDS,
    WORK,
    PlainResult,
    PlainStep,
    StepInOneCall,
)  # fmt: skip
from nextn.ops.base import NO_TOKEN
from nextn.request import TokenLogprob
from nextn.sampling.choice import draw_params
from nextn.sampling.penalties import penalized
from nextn.scheduler.plan import Plan, SpanResult, StepResult
from nextn.speculative.base import Drafter, DraftSpan, NoDrafter
from nextn.speculative.behind import Behind, Owners
from nextn.speculative.mtp import MTPDrafter
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import NO_CHOICE
from nextn.speculative.work import StepWork

NO_LOGPROBS: list[TokenLogprob] = []


def plain_steps(model: Model, pool: KVPool, drafter: Drafter) -> PlainSteps | None:
    """None if the model or the drafter does not support such steps."""
    if not isinstance(model, StepInOneCall):
        return None
    if isinstance(drafter, NoDrafter):
        return PlainSteps(model, pool, None)
    if type(drafter) is MTPDrafter and drafter.chain_drafter is not None:
        return PlainSteps(model, pool, drafter.behind)
    return None


class PlainSteps:
    def __init__(self, model: StepInOneCall, pool: KVPool, behind: Behind | None) -> None:
        """behind: the drafter's; None: there are no drafts."""
        self.model, self.pool, self.behind = model, pool, behind
        # The requests of the last step: their parameters, and their page tables, with equal room for each.
        self._last: Sequence[RequestState] | None = None
        self._requests = b""
        self._table, self._table_width = array("i"), 0
        self._kept: Owners | None = None  # owners of the states kept in it, if one row each

    def add(self, state: RequestState) -> None:
        """Prepares the data of a request that does not change."""
        params = state.params
        if params.tokens_alone and not penalized(params, params.min_tokens):
            state.plain_from = state.num_prompt + params.min_tokens
        state.ends = array("i", sorted(state.end_ids))
        state.asked = self.model.pack_request(draw_params(params, 0), state.ends, state.limit)

    def run(self, states: Sequence[RequestState], plan: Plan) -> StepResult | None:
        """Runs the step, or returns None if a request is not plain."""
        behind = self.behind
        waiting = behind is not None and len(behind) > 0
        if waiting and behind is not None and not plan.keep:
            behind.forget()
        step = self._step(states, plan, waiting and plan.keep)
        if step is None:
            return None
        found = self.model.plain_step(step, self.pool)
        self._last = states
        results = _results(states, step, found)
        if plan.keep and behind is not None and step.num_extending < len(states):
            self._keep(behind, states, plan, step, results)
        extended, decoding, drafts, context, passes = found.work[:WORK]
        deeper = tuple(found.work[WORK : WORK + passes])
        work = StepWork(len(step.tokens), extended, deeper, decoding, drafts, context)
        return StepResult(results, work)

    def _step(self, states: Sequence[RequestState], plan: Plan, waiting: bool) -> PlainStep | None:
        """waiting: whether hidden states are kept of positions that the draft layer has not seen."""
        self._prepare(states, plan)
        tokens: list[int] = []
        fields: list[int] = []
        page_size, choices, deepest, num_extending = self.pool.page_size, 0, 0, 0
        extends = EXTENDS if plan.cutoff is None else EXTENDS | CUT
        # Runs for every request in every step, so it does as little as possible.
        width = self._table_width
        for span, r in zip(plan.spans, states, strict=True):
            start, known, draft = span.start, span.known, span.draft
            if span.ahead:
                r.go_on(span.most_drafts)
                start, known, draft = r.start, r.known, r.draft
            end, history, drafts, following = start + known, r.history, len(draft.tokens), CHOOSES
            tokens += history[start:end]
            tokens += draft.tokens
            if span.scores:
                return None
            if span.chooses:
                if len(history) < r.plain_from:
                    return None
                choices += 1 + drafts
            elif r.grammar is not None:
                return None
            else:
                following = history[end]
            num_steps, flags = span.num_steps, 0
            if num_steps > deepest:
                deepest = num_steps
            if span.extend:
                if waiting and r.drafting.waiting is not None:
                    return None  # the draft layer has to catch up first
                num_extending += 1
                flags = extends if span.cut else EXTENDS
            fields += (start, known, drafts, following, width, num_steps, flags, span.draft_from // page_size)
        return PlainStep(
            array("i", tokens), array("i", fields), self._table, self._requests, len(states), choices,
            deepest, plan.cutoff, self.behind is not None, num_extending,
        )  # fmt: skip

    def _prepare(self, states: Sequence[RequestState], plan: Plan) -> None:
        """Updates parameters and page tables. If the requests are those of the last step, few have
        changed."""
        last, self._last = self._last, None  # until the step has run
        if states != last:
            self._kept = None
            self._requests = b"".join([r.asked for r in states])
            self._allocate_table(states)
            return
        for at, span in enumerate(plan.spans):
            if span.pages:
                first, end = span.first_page, span.first_page + len(span.pages)
                if end > self._table_width:
                    self._allocate_table(states)
                    return
                row = at * self._table_width
                self._table[row + first : row + end] = array("i", span.pages)

    def _allocate_table(self, states: Sequence[RequestState]) -> None:
        """Allocates the page tables, with room for twice as many pages as the longest has."""
        self._table_width = width = 2 * max([len(r.pages) for r in states], default=0)
        self._table = table = array("i", bytes(4 * width * len(states)))
        for at, r in enumerate(states):
            table[at * width : at * width + len(r.pages)] = r.pages

    def _keep(
        self, behind: Behind, states: Sequence[RequestState], plan: Plan, step: PlainStep,
        results: Sequence[SpanResult],
    ) -> None:  # fmt: skip
        """Keeps the hidden states of requests that did not extend."""
        chosen = all(r.tokens for r in results)
        one_row_each = not step.num_extending and len(step.tokens) == len(states) and chosen
        if not (one_row_each and behind.keep_again(self._kept, *self.model.states_at())):
            self._keep_any(behind, states, plan, step, results)
            last = behind.latest if one_row_each else None
            self._kept = last if last is not None and last.states == [r.drafting for r in states] else None

    @torch.inference_mode()
    def _keep_any(
        self, behind: Behind, states: Sequence[RequestState], plan: Plan, step: PlainStep,
        results: Sequence[SpanResult],
    ) -> None:  # fmt: skip
        spans: list[DraftSpan] = []
        at, fields, stride = 0, step.span_fields, SPAN_FIELDS
        each = zip(
            plan.spans, states, results, fields[::stride], fields[1::stride], fields[2::stride], strict=True
        )
        for span, r, result, start, known, drafts in each:
            tokens, first, seen = result.tokens, at, span.draft_from
            at += known + drafts
            if not span.extend and (tokens or not span.chooses):
                rows = range(first, first + known + max(0, len(tokens) - 1))
                spans.append(DraftSpan(r, r.drafting, start - seen, rows, (), (), 0, tokens, 0, seen, False))
        if spans:
            behind.keep(self.model.states(len(step.tokens)), spans)


def _results(states: Sequence[RequestState], step: PlainStep, found: PlainResult) -> list[SpanResult]:
    """The results, which are also committed to the requests' states. It reads little else of a request,
    because that is no longer in the CPU caches after the model has run."""
    numbers, _, guesses, bins = found
    fields, n, m = step.span_fields, SPAN_FIELDS, RESULT_FIELDS
    end = m * step.spans
    results = []
    draft_at = row = 0
    each = zip(
        states, fields[1::n], fields[2::n], fields[3::n], fields[6::n],
        numbers[:end:m], numbers[1:end:m], numbers[2:end:m], numbers[3:end:m], strict=True,
    )  # fmt: skip
    for state, known, drafts, following, flags, accepted, token, kept, made in each:
        draft, error = NO_DRAFT, None
        if kept >= 0:
            draft = Draft(guesses[draft_at : draft_at + kept])
            if flags & CUT:
                draft.bins = bins[draft_at : draft_at + made]
            draft_at += step.num_steps
        row += known
        tokens = step.tokens[row : row + accepted].tolist() if accepted else []
        row += drafts
        if token != NO_TOKEN:
            tokens.append(token)
        elif following == CHOOSES and not drafts:  # see nextn.speculative.verifier._verified
            error = NO_CHOICE
        result = SpanResult(tokens, draft, None, NO_LOGPROBS, False, error)
        state.commit(result)
        results.append(result)
    return results
