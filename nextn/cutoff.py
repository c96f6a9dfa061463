"""Decides how far a chain of guesses continues, guess by guess, from the drafter's confidence. Without I/O.

The confidence of a guess is the difference between its logit and the second-best one. Both include the noise,
because the target chooses with the same noise. It predicts much better than the depth whether a guess holds
(is accepted). With nextn-tiny, 43 of 100 guesses hold at a confidence below 0.25, and 99 above 2, at any
depth. `nextn.speculative.depth.value` counts how many verified guesses hold in each bin of confidence.

So at each point of a chain, the probability that all its guesses hold is known. A step gains from

    verifying a guess   if that probability exceeds the cost of a row in the target's step (`row_cost`),
    another guess       if that probability, times the average rate at which guesses hold, exceeds the cost of
                        a guess and its row (`guess_cost`), and the gains of all chains exceed the cost of
                        the pass (`pass_cost`).

Costs are seconds times the engine's tokens per second, so they are in tokens. `CutChains` is the rule. The
native kernels implement it in C++ (csrc/guesses.h), so that a step's chains are one call.

EAGLE-2 (arXiv 2406.16858) found that the drafter's confidence predicts acceptance. SmartSpec (arXiv
2406.14066) compares gains with step costs over the whole batch. The cutoff changes only speed, never texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EDGES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # logits
NO_GUESS = len(EDGES) + 1  # instead of a bin, if the logits leave no choice: the chain ends there
_EDGES = np.array(EDGES, np.float32)


class Cutoff(NamedTuple):
    """The cutoff of one step. rates: share of guesses that hold, by bin. row_cost, guess_cost, pass_cost:
    in tokens. mean_rate: their average, over all guesses. num_steps: depth of chains without confidence,
    because a guess is more than a draw."""

    rates: Sequence[float]
    row_cost: float
    mean_rate: float
    guess_cost: float
    pass_cost: float
    num_steps: int = 2

    @property
    def numbers(self) -> list[float]:
        """As the kernels take them: the rates, row_cost, mean_rate, guess_cost, pass_cost."""
        return [*self.rates, self.row_cost, self.mean_rate, self.guess_cost, self.pass_cost]


def bins(confidence: Sequence[float]) -> bytes:
    """The bin of each guess; bin 0 for NaN, which infinite logits can cause.

    >>> list(bins([0.1, 0.25, 9.0, float("inf"), float("nan")]))
    [0, 1, 8, 8, 0]
    """
    values = np.array(confidence, np.float32)
    return bytes((values[:, None] >= _EDGES).sum(axis=1).tolist())


class CutChains:
    """A step's chains that the cutoff may end, guess by guess. Every number is f32, and sums run in the order
    of the chains, as in csrc/guesses.h: the same bins give the same chains.

    going: indices of the chains that get a further guess, in order. made: number of guesses of each of these.
    kept: for each chain, how many of its guesses are worth verifying."""

    def __init__(self, cutoff: Cutoff, num_steps: Sequence[int]) -> None:
        """num_steps: maximum depth of each chain, at least 1."""
        numbers = np.array(cutoff.numbers, np.float32)
        self._rates = numbers[:NO_GUESS]
        self._row_cost, self._mean_rate, self._guess_cost, self._pass_cost = numbers[NO_GUESS:]
        self._num_steps = np.array(num_steps, np.int32)
        self._going = np.arange(len(num_steps))
        self._probability = np.ones(len(num_steps), np.float32)
        self._kept = np.zeros(len(num_steps), np.int32)
        self.made = 0

    @property
    def going(self) -> list[int]:
        going: list[int] = self._going.tolist()
        return going

    @property
    def kept(self) -> list[int]:
        kept: list[int] = self._kept.tolist()
        return kept

    def guessed(self, guess_bins: bytes, others: bool) -> None:
        """Each chain in `going` got a guess. guess_bins: their bins, or NO_GUESS. others: passes continue
        in any case, for chains without a cutoff."""
        self.made += 1
        own_bins = np.frombuffer(guess_bins, np.uint8)
        going = self._going[own_bins != NO_GUESS]
        self._probability[going] *= self._rates[own_bins[own_bins != NO_GUESS]]
        worth = going[self._probability[going] >= self._row_cost]
        self._kept[worth] = self.made
        worth = worth[self._num_steps[worth] > self.made]
        gains = self._probability[worth] * self._mean_rate - self._guess_cost
        self._going, gains = worth[gains > 0], gains[gains > 0]
        if len(gains) and not others and np.add.accumulate(gains)[-1] <= self._pass_cost:
            self._going = self._going[:0]
