"""Drafting beside grammars: where one leaves one way to go on, that is the draft, and no drafter runs for
it."""

from __future__ import annotations

from nextn.draft import MAX_DRAFTS, Draft
from nextn.request import CHAINS_ONLY
from nextn.speculative.base import Drafted, Drafter, DraftRequest, DraftSpan

_USUAL = 2  # guesses that a cutoff leaves, or so


def draft_in_grammars(drafter: Drafter, request: DraftRequest) -> Drafted:
    """The drafter's drafts without what the requests' grammars turn down. Where a grammar leaves one way to
    go on for as many tokens as the request is to get drafts, or for more, these are its draft: all of them
    hold."""
    forced: dict[int, Draft] = {}
    for i, span in enumerate(request.spans):
        found = _forced(span)
        if found is not None:
            forced[i], span.num_steps = found, 0
    made = drafter.draft(request)
    for i, span in enumerate(request.spans):
        grammar = span.request.grammar
        if grammar is not None:
            made.drafts[i] = forced[i] if i in forced else grammar.prune(made.drafts[i])
    return made


def _forced(span: DraftSpan) -> Draft | None:
    grammar = span.request.grammar
    if grammar is None or not span.num_steps or span.request.params.verify_mode in CHAINS_ONLY:
        return None
    tokens = grammar.forced(min(MAX_DRAFTS, span.room))
    # Where a cutoff says how deep drafts go, few come to `num_steps`.
    enough = span.num_steps if span.cutoff is None else min(span.num_steps, _USUAL)
    return Draft(tokens, forced=True) if len(tokens) >= enough else None
