"""How far a chain of guesses goes on, guess by guess, from the drafter's confidence. Pure.

Confidence is by how much a guess was ahead of the next best, in logits, noise included, since the target
chooses with the same noise. It says far more than the depth does: with nextn-tiny a guess with a confidence
below 0.25 holds in 43 of 100 cases, one above 2 in 99, at any depth. How often guesses of each bin of
confidence hold is counted as they are verified (`nextn.speculative.depth.worth`).

So a chain has at every point a probability that all of it holds, and a step gains by

    verifying a guess   if that is more than a row of the target's step costs (`keep`),
    guessing once more  if that, times how often guesses hold, is more than a guess and its row cost (`each`),
                        and if over all chains what is gained is more than the pass costs (`passing`),

costs being seconds times the tokens per second that the engine makes. `CutChains` is the rule; the native
kernels have it in C++ (csrc/guesses.h), so that a step's chains are one call.

EAGLE-2 (arXiv 2406.16858) found the drafter's confidence to tell acceptance; to weigh it against what steps
cost over the whole batch is as in SmartSpec (arXiv 2406.14066). The choice is of speed alone: whatever is
drafted, texts are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EDGES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # logits
NO_GUESS = len(EDGES) + 1  # instead of a bin, where the logits leave no choice: the chain ends there
_EDGES = np.array(EDGES, np.float32)


class Cutoff(NamedTuple):
    """Of a step. rates: by bin. keep, each, passing: tokens; usual: a probability. num_steps: of chains that
    have no confidence, as their guesses take more than a draw."""

    rates: Sequence[float]
    keep: float
    usual: float
    each: float
    passing: float
    num_steps: int = 2

    @property
    def numbers(self) -> list[float]:
        """As kernels take them: the rates, keep, usual, each, passing."""
        return [*self.rates, self.keep, self.usual, self.each, self.passing]


def bins(confidence: Sequence[float]) -> bytes:
    """The bin of each guess. Without a number, as among infinite logits: bin 0.

    >>> list(bins([0.1, 0.25, 9.0, float("inf"), float("nan")]))
    [0, 1, 8, 8, 0]
    """
    values = np.array(confidence, np.float32)
    return bytes((values[:, None] >= _EDGES).sum(axis=1).tolist())


class CutChains:
    """A step's chains that the cutoff may end, guess by guess. Every number is f32 and sums run in the order
    of the chains, as in csrc/guesses.h: the same bins give the same chains.

    going: those of the chains that get a further guess, in order. made: guesses of each of them. kept: how
    many of each chain's guesses are worth verifying."""

    def __init__(self, cutoff: Cutoff, num_steps: Sequence[int]) -> None:
        """num_steps: of each chain, at least 1."""
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
        """A guess of each chain that is `going` fell into these bins, or is NO_GUESS. others: the passes go
        on in any case, for chains without a cutoff."""
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
