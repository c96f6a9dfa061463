"""Decides how far a chain of guesses continues, guess by guess, from the drafter's confidence. Without I/O.

The confidence of a guess is the difference between its logit and the second-best one. Both include the noise,
because the target chooses with the same noise. It predicts much better than the depth whether a guess holds
(is accepted). With nextn-tiny, 43 of 100 guesses hold at a confidence below 0.25, and 99 above 2, at any
depth. `nextn.speculative.depth.worth` counts how many verified guesses hold in each bin of confidence.

So at each point of a chain, the probability that all its guesses hold is known. A step gains from

    verifying a guess   if that probability exceeds the cost of a row in the target's step (`keep`),
    another guess       if that probability, times the average rate at which guesses hold, exceeds the cost of
                        a guess and its row (`each`), and the gains of all chains exceed the cost of the
                        pass (`passing`).

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
    """The cutoff of one step. rates: share of guesses that hold, by bin. keep, each, passing: costs in
    tokens. usual: the average rate. num_steps: depth of chains whose guesses have no confidence, because a
    guess is more than a draw."""

    rates: Sequence[float]
    keep: float
    usual: float
    each: float
    passing: float
    num_steps: int = 2

    @property
    def numbers(self) -> list[float]:
        """As the kernels take them: the rates, keep, usual, each, passing."""
        return [*self.rates, self.keep, self.usual, self.each, self.passing]


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
        self._keep, self._usual, self._each, self._passing = numbers[NO_GUESS:]
        self._num_steps = np.array(num_steps, np.int32)
        self._going = np.arange(len(num_steps))
        self._holds = np.ones(len(num_steps), np.float32)
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

    def guessed(self, fell: bytes, others: bool) -> None:
        """Each chain in `going` got a guess. fell: the bins of these guesses, or NO_GUESS. others: passes
        continue in any case, for chains without a cutoff."""
        self.made += 1
        into = np.frombuffer(fell, np.uint8)
        going = self._going[into != NO_GUESS]
        self._holds[going] *= self._rates[into[into != NO_GUESS]]
        worth = going[self._holds[going] >= self._keep]
        self._kept[worth] = self.made
        worth = worth[self._num_steps[worth] > self.made]
        gains = self._holds[worth] * self._usual - self._each
        self._going, gains = worth[gains > 0], gains[gains > 0]
        if len(gains) and not others and np.add.accumulate(gains)[-1] <= self._passing:
            self._going = self._going[:0]
