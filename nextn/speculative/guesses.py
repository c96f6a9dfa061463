"""Chooses the guesses of a draft from the drafter's logits, in the verify mode of each request.

`exact`: with the noise that the target will use too. `typical`: the most likely tokens, because verification
depends on probabilities only. `rejection`, `block`: drawn with separate noise; the probabilities are kept
until the drafts are verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.ops.base import NO_TOKEN, Draw, DrawParams
from nextn.request import CHAINS_ONLY, Failure, SamplingParams, failed_in
from nextn.sampling import draws
from nextn.sampling.choice import Choice, choice_after, draw_params
from nextn.sampling.isolate import isolated
from nextn.sampling.penalties import penalized
from nextn.sampling.sampler import choose, probabilities, rank
from nextn.speculative.base import DraftSpan

# The best guesses at a place, best first: (token, log-probability). The log-probability may be 0 if there is
# only one guess. A token whose log-probability is -infinity or NaN is not a guess.
Guesses = list[tuple[int, float]]


class Place(NamedTuple):
    """Where a guess is made: after the guesses `path`, in the span with index `number` in the step."""

    number: int
    span: DraftSpan
    path: Sequence[int]


def first_draw(span: DraftSpan) -> DrawParams | None:
    """The draw of the request's next guess; for each further guess, the position increases by 1. None if its
    guesses need more than a draw from the drafter's logits."""
    params, position = span.request.params, span.position
    if params.verify_mode in CHAINS_ONLY or penalized(params, position - span.request.num_prompt):
        return None
    return draw_params(_for_guesses(params), position)


def guess(
    logits: Tensor, places: Sequence[Place], topk: int, draw: Draw, failed: dict[int, Failure]
) -> list[Guesses]:
    """logits: a row for each place -> its topk best guesses, or fewer if there are fewer. failed: gets the
    requests whose guesses raised an exception, by index of the span; they have no guesses."""
    every = range(len(places))

    def some(chosen: Sequence[int]) -> list[Guesses]:
        # After a failure, rows are tried one by one, and may be penalized twice. This can only cost a draft.
        part = logits[: len(places)] if chosen is every else logits[list(chosen)]
        return _guess(part, [places[n] for n in chosen], topk, draw)

    def fail(n: int, error: Exception) -> Guesses:
        failed[places[n].number] = failed_in("drafting", error)
        return []

    return isolated(some, every, fail, "drafting")


def _guess(logits: Tensor, places: Sequence[Place], topk: int, draw: Draw) -> list[Guesses]:
    weighed = [n for n, place in enumerate(places) if place.span.request.params.verify_mode in CHAINS_ONLY]
    others = [n for n in range(len(places)) if n not in weighed] if weighed else range(len(places))
    found: dict[int, Guesses] = {}
    if others:
        part = logits[torch.tensor(others, device=logits.device)] if weighed else logits
        choices = [_choice(places[n]) for n in others]
        if topk > 1:
            found |= zip(others, rank(part, choices, topk), strict=True)
        else:
            found |= zip(others, map(_single, choose(part, choices, draw)), strict=True)
    if weighed:
        assert topk == 1
        part = logits[torch.tensor(weighed, device=logits.device)]
        found |= zip(weighed, _weighed(part, [places[n] for n in weighed]), strict=True)
    return [found[n] for n in range(len(places))]


def _weighed(logits: Tensor, places: Sequence[Place]) -> list[Guesses]:
    chances = probabilities(logits, [_choice(p) for p in places])
    keys = [
        draws.DrawKey(params.seed, params.stream, p.span.position - 1, len(p.path) + 1)
        for p, params in ((p, p.span.request.params) for p in places)
    ]
    found = [_single(token) for token in draws.draw(draws.DRAFT, chances, keys)]
    for place, guesses, each in zip(places, found, chances, strict=True):
        if guesses:
            place.span.state.chances.append(each)
    return found


def _choice(place: Place) -> Choice:
    request = place.span.request
    return choice_after(request, place.span.chosen, place.path, _for_guesses(request.params))


def _single(token: int) -> Guesses:
    """The guess, or none for NO_TOKEN."""
    return [] if token == NO_TOKEN else [(token, 0.0)]


def _for_guesses(params: SamplingParams) -> SamplingParams:
    """The parameters for guesses. `typical`: only the probability matters, so guesses are greedy."""
    return params.replace(temperature=0.0) if params.verify_mode == "typical" else params
