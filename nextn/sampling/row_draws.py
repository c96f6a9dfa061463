"""The choice of `nextn.sampling.sampler`, of rows whose parameters lie on the device.

The host reads no number, so it can be part of a CUDA graph. A row gets the token that `sampler.draw` gives
it.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.sampling.filters import filter_rows
from nextn.sampling.gumbel import gumbel, places
from nextn.sampling.sampler import best_tokens

ROWS = 32  # that get their noise at a time: it takes a hundred bytes a logit while it is made


class Choosing(IntEnum):
    """What rows may ask for; a later one serves rows that ask for less, too."""

    GREEDY = 0
    SAMPLED = 1
    FILTERED = 2  # sampled, some with top-k, top-p or min-p


class RowDraws(NamedTuple):
    """[N] of each. temperature: 0 where the choice is greedy. filters: does the row have any? top_k: the
    size of the vocabulary where it is off."""

    seed_low: Tensor
    seed_high: Tensor
    stream: Tensor
    position: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    filters: Tensor

    def take(self, rows: Tensor) -> RowDraws:
        """Those of these rows."""
        return RowDraws(*(numbers.index_select(0, rows) for numbers in self))

    def part(self, rows: slice) -> RowDraws:
        return RowDraws(*(numbers[rows] for numbers in self))


BestToken = Callable[[Tensor], tuple[Tensor, Tensor]]  # of `nextn.ops.base.Ops`
Uniforms = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]  # the same


def draw_rows(
    logits: Tensor, draws: RowDraws, choosing: Choosing, uniforms: Uniforms, best: BestToken | None = None
) -> tuple[Tensor, Tensor | None]:
    """logits [N, V] f32, which may be written over -> tokens [N] int64, NO_TOKEN where there is no choice.
    uniforms: what the noise is made from.
    best: if given, what finds their confidence, [N] f32, see `nextn.ops.base.Draw`."""
    assert len(logits) == len(draws.position)
    if choosing != Choosing.GREEDY:
        for at in range(0, len(logits), ROWS):
            rows = slice(at, at + ROWS)
            logits[rows] = _perturbed(logits[rows], draws.part(rows), choosing, uniforms)
    tokens = best_tokens(logits)
    if best is None:
        return tokens, None
    ahead = best(logits)[1]
    return tokens, ahead * torch.where(draws.temperature > 0, draws.temperature, 1.0)


def _perturbed(logits: Tensor, draws: RowDraws, choosing: Choosing, uniforms: Uniforms) -> Tensor:
    """Of the rows that are sampled: filter(logits / T) + noise."""
    random = (draws.temperature > 0)[:, None]
    scaled = logits / torch.where(random, draws.temperature[:, None], 1.0)
    if choosing == Choosing.FILTERED:
        top_k, top_p, min_p = draws.top_k[:, None].float(), draws.top_p[:, None], draws.min_p[:, None]
        scaled = torch.where(draws.filters[:, None], filter_rows(scaled, top_k, top_p, min_p), scaled)
    count = logits.shape[1]
    drawn = uniforms(draws.seed_low, draws.seed_high, draws.stream, draws.position, places(count))
    return torch.where(random, scaled + gumbel(drawn, count), logits)
