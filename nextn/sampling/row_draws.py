"""The choice of `nextn.sampling.sampler`, for rows whose parameters are on the device.

The host reads no number from the device, so the choice can be part of a CUDA graph. A row gets the same token
as from `sampler.draw`.

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

ROWS = 32  # rows whose noise is computed at a time: this takes about a hundred bytes per logit


class Choosing(IntEnum):
    """The most general choice among the rows. A later value also handles rows that need an earlier one."""

    GREEDY = 0
    SAMPLED = 1
    FILTERED = 2  # sampled, some with top-k, top-p or min-p


class RowDraws(NamedTuple):
    """The parameters of N rows, [N] each. temperature: 0 if the choice is greedy. top_k: the size of the
    vocabulary if it is off. filters: whether the row has a filter."""

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
        """The parameters of these rows. rows: indices on the device."""
        return RowDraws(*(numbers.index_select(0, rows) for numbers in self))

    def part(self, rows: slice) -> RowDraws:
        return RowDraws(*(numbers[rows] for numbers in self))


BestToken = Callable[[Tensor], tuple[Tensor, Tensor]]  # of `nextn.ops.base.Ops`
Uniforms = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]  # the same


def draw_rows(
    logits: Tensor, draws: RowDraws, choosing: Choosing, uniforms: Uniforms, best: BestToken | None = None
) -> tuple[Tensor, Tensor | None]:
    """logits [N, V] f32, which may be overwritten -> tokens [N] int64, NO_TOKEN if no token can be chosen,
    and their confidence [N] f32 (`nextn.ops.base.Draw`), or None without `best`. uniforms: makes the random
    numbers of the noise. best: finds the confidence."""
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
    """filter(logits / T) + noise for sampled rows, and the logits for greedy rows."""
    random = (draws.temperature > 0)[:, None]
    scaled = logits / torch.where(random, draws.temperature[:, None], 1.0)
    if choosing == Choosing.FILTERED:
        top_k, top_p, min_p = draws.top_k[:, None].float(), draws.top_p[:, None], draws.min_p[:, None]
        scaled = torch.where(draws.filters[:, None], filter_rows(scaled, top_k, top_p, min_p), scaled)
    count = logits.shape[1]
    drawn = uniforms(draws.seed_low, draws.seed_high, draws.stream, draws.position, places(count))
    return torch.where(random, scaled + gumbel(drawn, count), logits)
