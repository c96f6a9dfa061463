"""Applies a step's result to one request: appends tokens, up to the request's end, and makes its output."""

from __future__ import annotations

import time
from typing import TypeAlias

from nextn.draft import NO_DRAFT, Draft
from nextn.request import Output, Request, StepDraft, first_end
from nextn.scheduler.plan import SpanResult

# How many of the result's tokens the request takes; its finish reason, None if it continues; and the id of
# the token that ended it, if one did.
Taken: TypeAlias = tuple[int, str | None, int | None]


def take(req: Request, res: SpanResult) -> Taken:
    """Appends the result's tokens to the request's, up to its end."""
    tokens, room = res.tokens, req.limit - len(req.tokens)
    if len(tokens) < room and req.end_ids.isdisjoint(tokens) and not res.ended and res.error is None:
        req.tokens += tokens  # the usual case
        return len(tokens), None, None
    taken, reason, matched, end = len(tokens), None, None, None
    if not req.end_ids.isdisjoint(tokens):
        # With a grammar, an end token before min_tokens is chosen only if the grammar allows nothing else.
        least = 0 if req.grammar is not None else req.params.min_tokens - req.num_output
        end = first_end(tokens, req.end_ids, least)
    if end is not None and end < room:
        taken, reason, matched = end, "stop", tokens[end]
    elif tokens and taken >= room:
        taken, reason = room, "length"
    req.tokens += tokens[:taken]
    if (res.ended or (res.error is not None and reason is None)) and taken == len(tokens):
        reason = "stop" if res.ended else "error"  # it did not end before
    return taken, reason, matched


def output(req: Request, res: SpanResult, taken: Taken, first: bool, draft: Draft = NO_DRAFT) -> Output:
    """first: the request had no output before. draft: the draft that the step verified."""
    n, reason, matched = taken
    drafted = [*range(1, n), 0] if n and n == len(res.tokens) else [*range(1, n + 1)]
    out = Output(req.rid, res.tokens[:n], drafted, reason, matched)
    out.queued = req.queued
    if reason == "error" and res.error is not None:
        out.error_code, out.error = res.error
    if res.logprobs is not None:
        out.logprobs = res.logprobs[:n]
        out.matched_logprob = None if matched is None else res.logprobs[n]
    if first and req.params.prompt_logprobs is not None:
        out.prompt_logprobs = [None, *req.prompt_logprobs]
    if req.params.draft_steps:
        accepted = draft.follow(res.tokens[:-1])
        out.step = StepDraft(draft.tokens, draft.parents, accepted, time.perf_counter() - req.arrived)
    if reason is not None:
        out.spec, out.cached_tokens, out.retractions = req.spec, req.first_cached, req.retractions
    return out
