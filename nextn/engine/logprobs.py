"""Requested log-probabilities: of the tokens that a step commits, and of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from nextn.models.base import Model, take
from nextn.request import Failure, TokenLogprob, failed_in
from nextn.sampling.isolate import isolated
from nextn.sampling.logprobs import LogprobRequest, prompt_logprobs, token_logprobs
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import Verified


class Logprobs(NamedTuple):
    """One request's log-probabilities, None if it wants none."""

    found: list[TokenLogprob] | None = None
    error: Failure | None = None


NO_LOGPROBS = Logprobs()


def copied(logits: Tensor, states: Sequence[RequestState]) -> Tensor | None:
    """A copy of the logits of requests that want log-probabilities. logits: after the root and every node of
    each request."""
    wanted: list[int] = []
    at = 0
    for r in states:
        after = at + len(r.draft.tokens) + 1
        if r.params.logprobs is not None:
            wanted.extend(range(at, after))
        at = after
    return logits[wanted] if wanted else None


def output(
    raw: Tensor | None, states: Sequence[RequestState], verified: Sequence[Verified]
) -> list[Logprobs]:
    """For the tokens that each request commits. `raw`: see `nextn.engine.runner.Runner._verify`."""
    wanted: list[tuple[int, int]] = []  # places in `states`, with their first row of `raw`
    if raw is not None:
        at = 0
        for i, r in enumerate(states):
            if r.chooses and r.params.logprobs is not None:
                wanted.append((i, at))
                at += len(r.draft) + 1

    def compute(some: Sequence[tuple[int, int]]) -> list[Logprobs]:
        assert raw is not None
        requests: list[LogprobRequest] = []
        for i, first in some:
            chosen_at = (0, *(node + 1 for node in verified[i].path))
            top = states[i].params.logprobs or 0
            # A request with an error may commit nothing.
            requests += [
                LogprobRequest(first + n, t, top) for n, t in zip(chosen_at, verified[i].tokens, strict=False)
            ]
        logprobs = iter(token_logprobs(raw, requests))
        return [Logprobs([next(logprobs) for _ in verified[i].tokens]) for i, _ in some]

    return _each(compute, wanted, len(states))


def prompts(model: Model, hidden: Tensor, states: Sequence[RequestState]) -> list[Logprobs]:
    """For prompt tokens. hidden: the step's rows, one request after the other."""
    wanted: list[tuple[int, int]] = []  # places in `states`, with their first row of `hidden`
    at = 0
    for i, r in enumerate(states):
        if r.scores:
            wanted.append((i, at))
        at += len(r.tokens)

    def logits(places: list[int]) -> Tensor:
        return model.logits(take(model, hidden, places))

    def compute(some: Sequence[tuple[int, int]]) -> list[Logprobs]:
        requests = [r for i, first in some for r in _prompt_requests(states[i], first)]
        logprobs = prompt_logprobs(logits, requests)
        return [Logprobs([next(logprobs) for _ in states[i].scores]) for i, _ in some]

    return _each(compute, wanted, len(states))


def _each(
    compute: Callable[[Sequence[tuple[int, int]]], list[Logprobs]],
    wanted: Sequence[tuple[int, int]],
    n: int,
) -> list[Logprobs]:
    """A result for every request, without log-probabilities for those not in `wanted`."""
    logprobs = [NO_LOGPROBS] * n
    if wanted:
        found = isolated(
            compute,
            wanted,
            lambda _, e: Logprobs(error=failed_in("log-probabilities", e)),
            "log-probabilities",
        )
        for (i, _), each in zip(wanted, found, strict=True):
            logprobs[i] = each
    return logprobs


def _prompt_requests(state: RequestState, first: int) -> list[LogprobRequest]:
    after, top = state.start + 1, state.params.prompt_logprobs or 0
    return [LogprobRequest(first + i, state.history[after + i], top) for i in state.scores]
