"""The cutoff on the device: `nextn.cutoff.CutChains` in plain tensor code of fixed shapes. The host reads no
numbers.

The gains of a pass are added in f64, while `CutChains` adds f32 numbers one after the other. The two may
differ for a pass whose gain equals its cost to seven digits. This can change a draft, but no text.

Shapes: R requests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.cutoff import EDGES, NO_GUESS

NUMBERS = NO_GUESS + 4  # length of `Cutoff.numbers`


def edges(device: torch.device) -> Tensor:
    return torch.tensor(EDGES, dtype=torch.float32, device=device)


def bins_of(confidence: Tensor, edges: Tensor) -> Tensor:
    """`nextn.cutoff.bins`: [R] f32 -> [R] int64."""
    return (confidence[:, None] >= edges[None]).sum(dim=1)


class DeviceCutChains:
    """going: [R] bool, the chains that get a further guess. kept: [R] int64, the number of guesses of each
    chain that are worth verifying."""

    def __init__(self, numbers: Tensor, num_steps: Tensor, chains: Tensor) -> None:
        """numbers: [NUMBERS] f32. num_steps: [R] int64. chains: [R] bool, those that the cutoff may end."""
        self._rates = numbers[:NO_GUESS]
        self._row_cost, self._mean_rate, self._guess_cost, self._pass_cost = numbers[NO_GUESS:].unbind()
        self._num_steps, self.going = num_steps, chains
        self._probability = torch.ones_like(num_steps, dtype=torch.float32)
        self.kept = torch.zeros_like(num_steps)
        self._made = 0

    def guessed(self, guess_bins: Tensor, found: Tensor, others: Tensor) -> None:
        """Each chain in `going` got a guess. guess_bins: [R] int64, its confidence bin. found: [R] bool,
        whether there was a guess. others: whether the next pass runs in any case."""
        self._made += 1
        chains = self.going & found
        accepted = self._probability * self._rates[guess_bins]
        self._probability = torch.where(chains, accepted, self._probability)
        worth = chains & (self._probability >= self._row_cost)
        self.kept = torch.where(worth, self._made, self.kept)
        gains = self._probability * self._mean_rate - self._guess_cost
        on = worth & (self._num_steps > self._made) & (gains > 0)
        total = torch.where(on, gains, 0.0).double().sum()
        self.going = on & (others | (total > self._pass_cost))
