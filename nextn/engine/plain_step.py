"""Steps whose requests want nothing but tokens: one call of the model, with the results of the runner's way.

Such a request is verified by `exact`, and its logits are what the model says: no penalties, bias, grammar or
log-probabilities. Its drafts are chains. Parts of prompts take part, too, unless they are scored.
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
    TAKEN,
    TURN,
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
    """None where the model or the drafter has no such steps."""
    if not isinstance(model, StepInOneCall):
        return None
    if isinstance(drafter, NoDrafter):
        return PlainSteps(model, pool, None)
    if type(drafter) is MTPDrafter and drafter.in_one_call is not None:
        return PlainSteps(model, pool, drafter.behind)
    return None


class PlainSteps:
    def __init__(self, model: StepInOneCall, pool: KVPool, behind: Behind | None) -> None:
        """behind: the drafter's; None: nobody drafts."""
        self.model, self.pool, self.behind = model, pool, behind
        # Those of the last step: what they ask for, their pages, and how many these are.
        self._last: Sequence[RequestState] | None = None
        self._asked = b""
        self._table, self._counts = array("i"), list[int]()
        self._kept: Owners | None = None  # of what was kept in it, where that was a row each

    def add(self, state: RequestState) -> None:
        """Makes ready what does not change of a request."""
        params = state.params
        if params.tokens_alone and not penalized(params, params.min_tokens):
            state.plain_from = state.num_prompt + params.min_tokens
        state.ends = array("i", sorted(state.end_ids))
        state.asked = self.model.ask(draw_params(params, 0), state.ends, state.limit)

    def run(self, states: Sequence[RequestState], plan: Plan) -> StepResult | None:
        """None where the step is none of these."""
        behind = self.behind
        if behind is not None and len(behind) and not plan.keep:
            behind.forget()
        step = self._step(states, plan)
        if step is None:
            self._last = None
            return None
        found = self.model.plain_step(step, self.pool)
        results = _results(states, step, found)
        if plan.keep and behind is not None and step.extending < len(states):
            self._keep(behind, states, step, results)
        extended, decoding, drafts, context, passes = found.work[:WORK]
        deeper = tuple(found.work[WORK : WORK + passes])
        work = StepWork(len(step.tokens), extended, deeper, decoding, drafts, context)
        return StepResult(results, work)

    def _step(self, states: Sequence[RequestState], plan: Plan) -> PlainStep | None:
        behind = self.behind
        waiting = behind is not None and len(behind) > 0
        if waiting and any(r.extend and r.drafting.waiting is not None for r in states):
            return None  # they catch up first
        self._prepare(states, plan)
        tokens, turns, page_size = list[int](), list[int](), self.pool.page_size
        choices = num_steps = extending = 0
        # Once for every request and step: as little as can be.
        for r, pages in zip(states, self._counts, strict=True):
            drafts, following = len(r.draft.tokens), CHOOSES
            if r.scores:
                return None
            if r.chooses:
                if len(r.history) < r.plain_from:
                    return None
                choices += 1 + drafts
            elif r.grammar is not None:
                return None
            else:
                following = r.following
            if r.num_steps > num_steps:
                num_steps = r.num_steps
            extending += r.extend
            flags = (EXTENDS if r.extend else 0) | (0 if r.cutoff is None else CUT)
            page = r.draft_from // page_size
            turns += (r.start, r.known, drafts, following, pages, r.num_steps, flags, page)
            tokens += r.tokens
        return PlainStep(
            array("i", tokens), array("i", turns), self._table, self._asked, len(states), choices, num_steps,
            plan.cutoff, behind is not None, extending,
        )  # fmt: skip

    def _prepare(self, states: Sequence[RequestState], plan: Plan) -> None:
        """What is mostly as it was in the step before, whose requests and pages are the same."""
        same = states == self._last
        if not same:
            self._last, self._kept = states, None
            self._asked = b"".join([r.asked for r in states])
        if not same or any(span.pages for span in plan.spans):
            self._table, self._counts = array("i"), [len(r.pages) for r in states]
            for r in states:
                self._table.extend(r.pages)

    def _keep(
        self, behind: Behind, states: Sequence[RequestState], step: PlainStep, results: Sequence[SpanResult]
    ) -> None:
        """The hidden states of requests that did not extend."""
        alike = not step.extending and len(step.tokens) == len(states) and all(r.tokens for r in results)
        if not (alike and behind.keep_again(self._kept, *self.model.states_at())):
            self._keep_any(behind, states, step, results)
            last = behind.latest if alike else None
            self._kept = last if last is not None and last.states == [r.drafting for r in states] else None

    @torch.inference_mode()
    def _keep_any(
        self, behind: Behind, states: Sequence[RequestState], step: PlainStep, results: Sequence[SpanResult]
    ) -> None:
        spans: list[DraftSpan] = []
        at = 0
        for r, result in zip(states, results, strict=True):
            tokens, first = result.tokens, at
            at += len(r.tokens)
            if not r.extend and (tokens or not r.chooses):
                rows = range(first, first + r.known + max(0, len(tokens) - 1))
                start = r.start - r.draft_from
                spans.append(DraftSpan(r, r.drafting, start, rows, (), (), 0, tokens, 0, r.draft_from, False))
        if spans:
            behind.keep(self.model.states(len(step.tokens)), spans)


def _results(states: Sequence[RequestState], step: PlainStep, found: PlainResult) -> list[SpanResult]:
    """And the requests take them in. Nothing else of a request is looked at: it has left the processor's
    caches while the model ran."""
    taken, _, guesses, bins = found
    turns, end = step.turns, TAKEN * step.spans
    results = []
    draft_at = row = 0
    each = zip(
        states, turns[1::TURN], turns[2::TURN], turns[3::TURN], turns[6::TURN],
        taken[:end:TAKEN], taken[1:end:TAKEN], taken[2:end:TAKEN], taken[3:end:TAKEN], strict=True,
    )  # fmt: skip
    for state, known, drafts, following, flags, held, token, kept, made in each:
        draft, error = NO_DRAFT, None
        if kept >= 0:
            cut = bins[draft_at : draft_at + made] if flags & CUT else b""
            draft = Draft(guesses[draft_at : draft_at + kept], None, None, cut)
            draft_at += step.num_steps
        row += known
        tokens = step.tokens[row : row + held].tolist() if held else []
        row += drafts
        if token != NO_TOKEN:
            tokens.append(token)
        elif following == CHOOSES and not drafts:  # see nextn.speculative.verifier._verified
            error = NO_CHOICE
        result = SpanResult(tokens, draft, None, NO_LOGPROBS, False, error)
        state.commit(result)
        results.append(result)
    return results
