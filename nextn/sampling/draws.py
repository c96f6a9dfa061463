"""The random numbers of the verify modes that use probabilities (nextn.speculative.verify).

Each number is a function of (seed, stream, root, depth, purpose). `root` is the position of the last
committed token. It identifies the step, because every step commits a token. The position of a draft would not
be enough: `block` rejects a prefix by looking at the coins of all drafts after it. So these coins are used
up, and the next step needs new ones for the same positions.

Philox's counter is (word, root + depth, stream, purpose | depth << 2), see nextn.sampling.gumbel. The noise
of `nextn.sampling.sampler` has 0 in the last place. So no number is used twice, here or in the sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.ops.philox import MASK, philox, uniform
from nextn.sampling.gumbel import gumbel_noise
from nextn.sampling.sampler import best_tokens

COIN, FINAL, DRAFT = 1, 2, 3


class DrawKey(NamedTuple):
    """The key of one request's numbers for the token at `depth` after the token at position `root`. For
    `coins`: for all depths from 1 to `depth`."""

    seed: int
    stream: int
    root: int
    depth: int


def coins(keys: Sequence[DrawKey]) -> list[list[float]]:
    """[i][j] in (0, 1): the coin of request i at depth j + 1."""

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)[:, None]

    depth = torch.arange(1, max((d.depth for d in keys), default=0) + 1)[None]
    root, stream = column([d.root for d in keys]), column([d.stream for d in keys])
    key = column([d.seed & MASK for d in keys]), column([d.seed >> 32 for d in keys])
    words = philox((torch.zeros_like(depth), root + depth, stream, COIN | depth << 2), key)
    return [row[: d.depth] for row, d in zip(uniform(words[..., 0]).tolist(), keys, strict=True)]


def draw(purpose: int, weights: Tensor, keys: Sequence[DrawKey]) -> list[int]:
    """Draws a token for each row, with probabilities in proportion to weights [N, V]: Gumbel-max over their
    logarithms. purpose: DRAFT for drafts, FINAL for the tokens that end a step. NO_TOKEN if all weights of a
    row are 0."""
    noise = gumbel_noise(
        [d.seed for d in keys],
        [d.stream for d in keys],
        [d.root + d.depth for d in keys],
        weights.shape[1],
        weights.device,
        [purpose | d.depth << 2 for d in keys],
    )
    tokens: list[int] = best_tokens(weights.log() + noise).tolist()
    return tokens
