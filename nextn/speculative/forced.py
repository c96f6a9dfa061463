"""Drafts of requests with grammars. If a grammar allows only one continuation, it is the draft, and no
drafter runs for this request."""

from __future__ import annotations

from nextn.draft import MAX_DRAFTS, Draft
from nextn.request import CHAINS_ONLY
from nextn.speculative.base import Drafted, Drafter, DraftRequest, DraftSpan

_USUAL = 2  # typical number of guesses that a cutoff keeps


def draft_in_grammars(drafter: Drafter, request: DraftRequest) -> Drafted:
    """The drafter's drafts, without tokens that the requests' grammars forbid. If a grammar allows only one
    continuation for at least as many tokens as the request may draft, these tokens are its draft. All of
    them will be accepted."""
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
    # With a cutoff, few drafts reach `num_steps`.
    enough = span.num_steps if span.cutoff is None else min(span.num_steps, _USUAL)
    return Draft(tokens, forced=True) if len(tokens) >= enough else None
