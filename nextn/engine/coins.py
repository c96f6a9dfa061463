"""The random numbers of the verify modes that weigh probabilities (nextn.speculative.verify).

Each is a function of (seed, stream, root, depth, purpose), where `root` is the position of the last committed
token: a step's own name, as every step commits a token. The position alone would not do: `block` turns a
prefix down by looking at the coins of all drafts after it, so those coins are spent, whatever is tried at
their positions in the next step.

Philox's counter is (word, root + depth, stream, purpose | depth << 2), see nextn.engine.gumbel, whose own
noise has a 0 in the last place. So nothing here is ever drawn twice, nor together with the one choice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nextn.engine.gumbel import MASK, gumbel_noise, philox, uniform

COIN, FINAL, DRAFT = 1, 2, 3


class Dice(NamedTuple):
    """One request's, in the step whose root is the token at position `root`."""

    seed: int
    stream: int
    root: int

    def coins(self, n: int) -> list[float]:
        """[j] in (0, 1): for the drafts at depth j + 1."""
        depth = torch.arange(1, n + 1, dtype=torch.int64)
        zero = torch.zeros_like(depth)
        words = philox(
            (zero, self.root + depth, zero + self.stream, COIN | depth << 2),
            (zero + (self.seed & MASK), zero + (self.seed >> 32)),
        )
        found: list[float] = uniform(words[:, 0]).tolist()
        return found

    def draw(self, purpose: int, weights: Tensor, depth: int) -> int:
        """Draws the token at `depth` in proportion to weights [V]: Gumbel-max over their logarithms. purpose:
        DRAFT for a draft, FINAL for the token that ends the step."""
        position, use = self.root + depth, purpose | depth << 2
        noise = gumbel_noise([self.seed], [self.stream], [position], weights.shape[0], weights.device, [use])
        return int((weights.log() + noise[0]).argmax())
