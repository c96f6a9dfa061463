"""Drafts without a draft layer: the tokens that followed the last time the request's text ended like this.

Keeps an index of each request's tokens (`ngram`) and runs no model. It guesses only if the end of a text
occurred before. Such drafts take only the time of their verification.
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
    """(a draft after the tokens that the step chose, the length of the suffix that was found, 0 if none). The
    chosen tokens are not in the history yet."""
    index = span.state.ngrams
    index.extend(span.request.history[len(index.tokens) :])
    index.extend(span.chosen)
    tokens, length = index.guess(span.num_steps)
    return Draft(tokens) if length else NO_DRAFT, length
