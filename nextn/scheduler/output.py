"""What a step's result makes of one request: the tokens that it takes, all or those up to its end, and its
output."""

from __future__ import annotations

import time
from typing import NamedTuple

from nextn.draft import MAX_DRAFTS, NO_DRAFT, Draft
from nextn.request import Output, Request, StepDraft
from nextn.scheduler.plan import SpanResult


class Taken(NamedTuple):
    """tokens: how many of the result's. reason: why the request ends, None if it goes on. matched: the end
    token's id, if one ended it."""

    tokens: int
    reason: str | None = None
    matched: int | None = None


GOES_ON = [Taken(n) for n in range(MAX_DRAFTS + 2)]


def take(req: Request, res: SpanResult) -> Taken:
    """Appends the result's tokens to the request's, up to its end."""
    tokens = res.tokens
    ends = res.ended or res.error is not None or len(req.tokens) + len(tokens) >= req.limit
    if not ends and req.end_ids.isdisjoint(tokens):  # as a rule
        req.tokens += tokens
        return GOES_ON[len(tokens)]
    taken, reason, matched = _append(req, tokens)
    if taken == len(tokens) and (res.ended or reason is None):  # else it ended before that
        reason = "stop" if res.ended else "error" if res.error is not None else reason
    return Taken(taken, reason, matched)


def _append(req: Request, tokens: list[int]) -> Taken:
    if tokens and len(req.tokens) >= req.limit:  # nothing but the prompt was asked for
        return Taken(0, "length")
    for i, token in enumerate(tokens):
        # Before min_tokens a grammar's text ends only if the grammar leaves nothing else.
        if token in req.end_ids and (req.num_output >= req.params.min_tokens or req.grammar is not None):
            return Taken(i, "stop", token)
        req.tokens.append(token)
        if len(req.tokens) >= req.limit:
            return Taken(i + 1, "length")
    return Taken(len(tokens))


def output(req: Request, res: SpanResult, taken: Taken, first: bool, draft: Draft = NO_DRAFT) -> Output:
    """first: the request had no output before. draft: what the step verified."""
    n, reason, matched = taken
    accepted = max(0, len(res.tokens) - 1)
    drafted = [*range(1, accepted + 1), 0][:n]
    out = Output(req.rid, res.tokens[:n], drafted, reason, matched, queued=req.queued)
    if reason == "error" and res.error is not None:
        out.error_code, out.error = res.error
    if res.logprobs is not None:
        out.logprobs = res.logprobs[:n]
        out.matched_logprob = None if matched is None else res.logprobs[n]
    if first and req.params.prompt_logprobs is not None:
        out.prompt_logprobs = [None, *req.prompt_logprobs]
    if req.params.draft_steps:
        held = draft.follow(res.tokens[:accepted])
        out.step = StepDraft(draft.tokens, draft.parents, held, time.perf_counter() - req.arrived)
    if reason is not None:
        out.spec, out.cached_tokens, out.retractions = req.spec, req.first_cached, req.retractions
    return out
