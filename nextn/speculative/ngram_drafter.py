"""Drafts without a draft layer: what followed the last time that the request's text ended like this.

Keeps an index of each request's tokens (`ngram`) and runs nothing. It has a guess only where a text says
again what it said before; such drafts cost no more than their verification.
"""

from __future__ import annotations

from nextn.draft import NO_DRAFT, Draft
from nextn.speculative.base import Drafted, DraftRequest, DraftSpan
from nextn.speculative.draft_state import DraftState


class NGramDrafter:
    def draft(self, request: DraftRequest) -> Drafted:
        return Drafted([ngram_guess(span)[0] if span.num_steps else NO_DRAFT for span in request.spans])

    def forget(self) -> None:
        pass

    def drop(self, state: DraftState) -> None:
        pass


def ngram_guess(span: DraftSpan) -> tuple[Draft, int]:
    """After what the step chose, which the history does not have yet: a draft, and how many tokens of suffix
    it rests on, 0 if there is none."""
    index = span.state.ngrams
    index.extend(span.request.history[len(index.tokens) :])
    index.extend(span.chosen)
    length, at = index.find()
    return Draft(index.following(at, span.num_steps)) if length else NO_DRAFT, length
