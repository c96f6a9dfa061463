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
    PlainResult,
    PlainStep,
    StepInOneCall,
)  # fmt: skip
from nextn.ops.base import NO_TOKEN
from nextn.sampling.choice import draw_params
from nextn.sampling.penalties import penalized
from nextn.scheduler.plan import Plan, SpanResult, StepResult
from nextn.speculative.base import Drafter, DraftSpan, NoDrafter
from nextn.speculative.behind import Behind
from nextn.speculative.mtp import MTPDrafter
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import NO_CHOICE
from nextn.speculative.work import StepWork


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

    def add(self, state: RequestState) -> None:
        """Makes ready what does not change of a request."""
        params = state.params
        exact = params.verify_mode == "exact" and params.logprobs is None
        if exact and not penalized(params, params.min_tokens):
            state.plain_from = state.num_prompt + params.min_tokens
        state.ends = array("i", sorted(state.end_ids))
        state.asked = self.model.ask(draw_params(params, 0), state.ends, state.limit)

    def run(self, states: Sequence[RequestState], plan: Plan) -> StepResult | None:
        """None where the step is none of these."""
        behind = self.behind
        if behind is not None and len(behind):
            if not plan.keep:
                behind.forget()
            elif any(r.extend and r.drafting.waiting is not None for r in states):
                return None
        step = self._step(states, plan)
        if step is None:
            return None
        found = self.model.plain_step(step, self.pool)
        results = _results(states, step, found)
        if plan.keep and behind is not None and not all(r.extend for r in states):
            self._keep(behind, states, step, results)
        return StepResult(results, _work(step, found))

    def _step(self, states: Sequence[RequestState], plan: Plan) -> PlainStep | None:
        tokens, turns, table = array("i"), array("i"), array("i")
        asked: list[bytes] = []
        choices = num_steps = 0
        for r in states:  # once for every request and step: as little as can be
            known, drafts = r.known, len(r.draft.tokens)
            if r.chooses:
                if len(r.history) < r.plain_from:
                    return None
                following = CHOOSES
                choices += 1 + drafts
            elif r.scores or r.grammar is not None:
                return None
            else:
                following = r.following
            if r.num_steps > num_steps:
                num_steps = r.num_steps
            flags = (EXTENDS if r.extend else 0) | (0 if r.cutoff is None else CUT)
            pages, page = r.pages, r.draft_from // self.pool.page_size
            turns.extend((r.start, known, drafts, following, len(pages), r.num_steps, flags, page))
            tokens.extend(r.tokens)
            table.extend(pages)
            asked.append(r.asked)
        if not asked:
            return None
        drafting = self.behind is not None
        return PlainStep(tokens, turns, table, asked, choices, num_steps, plan.cutoff, drafting)

    @torch.inference_mode()
    def _keep(
        self, behind: Behind, states: Sequence[RequestState], step: PlainStep, results: Sequence[SpanResult]
    ) -> None:
        """The hidden states of requests that did not extend."""
        hidden = self.model.states(len(step.tokens))
        if len(step.tokens) == len(states) and all(result.tokens for result in results):
            alone = not any(r.extend for r in states)
            if alone and behind.keep_again(hidden, [r.drafting for r in states]):
                return
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
            behind.keep(hidden, spans)


def _results(states: Sequence[RequestState], step: PlainStep, found: PlainResult) -> list[SpanResult]:
    """And what the requests commit is appended to their history."""
    taken, _, guesses, bins = found
    results = []
    at = 0
    each = zip(states, taken[::TAKEN], taken[1::TAKEN], taken[2::TAKEN], taken[3::TAKEN], strict=True)
    for r, held, token, kept, made in each:
        draft, error = NO_DRAFT, None
        if kept >= 0:
            cut = b"" if r.cutoff is None else bins[at : at + made]
            draft = Draft(guesses[at : at + kept], None, None, cut)
            at += step.num_steps
        tokens = [*r.draft.tokens[:held]] if held else []
        if token != NO_TOKEN:
            tokens.append(token)
        elif r.chooses and not r.draft.tokens:  # see nextn.speculative.verifier._verified
            error = NO_CHOICE
        if r.chooses:
            r.commit(tokens, error is not None, draft)
        results.append(SpanResult(tokens, draft, None, [], False, error))
    return results


def _work(step: PlainStep, found: PlainResult) -> StepWork:
    rows, extended, passes = len(step.tokens), found.passes[0], found.passes[2:]
    while passes and not passes[-1]:
        passes.pop()
    starts, following = step.turns[::TURN], step.turns[3::TURN]
    decoding = following.count(CHOOSES)
    if decoding < len(following):
        starts = array("i", [start for start, n in zip(starts, following, strict=True) if n == CHOOSES])
    return StepWork(rows, extended, tuple(passes), decoding, step.choices - decoding, sum(starts))
