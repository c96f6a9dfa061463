"""Drafts from n-grams for requests whose n-grams were accepted more often than the NextN layer's drafts, and
from the NextN layer otherwise.

N-grams guess in every step, because this takes almost no time. They are compared with the committed tokens,
even if they were not drafted. The layer is judged by its drafts only. If n-grams draft, the layer still runs
over the committed tokens, so its cache stays complete. Only the passes for its guesses are saved.

vLLM has discussed a similar idea (issue 18633: n-grams whenever they match). Arctic Inference uses the draft
of its suffix tree if it expects more tokens than a threshold. nextn compares acceptance.
"""

from __future__ import annotations

import dataclasses

from nextn.draft import Draft
from nextn.speculative.acceptance import Acceptance
from nextn.speculative.base import Drafted, Drafter, DraftRequest
from nextn.speculative.draft_state import DraftState
from nextn.speculative.ngram_drafter import ngram_guess

NEXTN = 0  # number of this source; that of n-grams is the length of their suffix


class MixedDrafter:
    def __init__(self, nextn: Drafter) -> None:
        self.nextn, self.acceptance = nextn, Acceptance()

    def forget(self) -> None:
        self.nextn.forget()

    def drop(self, state: DraftState) -> None:
        self.nextn.drop(state)

    def draft(self, request: DraftRequest) -> Drafted:
        found: dict[int, Draft] = {}
        rate = self.acceptance.rate
        for i, span in enumerate(request.spans):
            if not span.chosen:
                continue  # a prompt chunk
            state = span.state
            guesses, state.guesses = state.guesses, {}
            if state.guessed_at != len(span.request.history):
                guesses = {}  # there were steps without a call
            state.guessed_at = span.position
            for source, guess in guesses.items():
                self.acceptance.learn(state.acceptance, source, guess, span.chosen)
            if not span.num_steps:
                continue
            draft, length = ngram_guess(span)
            if length:
                state.guesses[length] = draft.tokens
                if rate(state.acceptance, length) >= rate(state.acceptance, NEXTN):
                    found[i] = draft
        rest = [dataclasses.replace(s, num_steps=0) if i in found else s for i, s in enumerate(request.spans)]
        made = self.nextn.draft(request._replace(spans=rest))
        for span, draft in zip(rest, made.drafts, strict=True):
            if span.num_steps:
                span.state.guesses[NEXTN] = draft.tokens
        return made._replace(drafts=[found.get(i, draft) for i, draft in enumerate(made.drafts)])
