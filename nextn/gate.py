"""How far a chain of guesses is worth going on, guess by guess, from how sure the drafter is. Pure.

How sure it is shows in its choice: by how much the chosen token was ahead of the next best, noise included,
since the target chooses with the same noise. That lead, in logits, says far more than the depth does: with
nextn-tiny a guess that leads by less than 0.25 holds in 43 of 100 cases, one that leads by more than 2 in 99,
at any depth. How often guesses of each bin of leads hold is counted as they are verified
(`nextn.speculative.depth.worth`).

So a chain has at every point a probability that all of it holds, and a step gains by

    verifying a guess   if that is more than a row of the target's step costs (`keep`),
    guessing once more  if that, times how often guesses hold, is more than a guess and its row cost (`each`),
                        and if over all chains what is gained is more than the pass costs (`passing`),

costs being seconds times the tokens per second that the engine makes. `GatedChains` is the rule; the native
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
_EDGES = np.array(EDGES, np.float32)


class Gate(NamedTuple):
    """Of a step. rates: by bin. keep, each, passing: tokens; usual: a probability. ungated: how deep chains
    go whose guesses are not chosen by a draw alone, and so have no confidence."""

    rates: Sequence[float]
    keep: float
    usual: float
    each: float
    passing: float
    ungated: int = 2


def bins(confidence: Sequence[float]) -> bytes:
    """The bin of each guess, by how far it led. Without a number, as among infinite logits: bin 0.

    >>> list(bins([0.1, 0.25, 9.0, float("inf"), float("nan")]))
    [0, 1, 8, 8, 0]
    """
    led = np.array(confidence, np.float32)
    return bytes((led[:, None] >= _EDGES).sum(axis=1).tolist())


class GatedChains:
    """A step's gated chains, guess by guess. Every number is f32 and sums run in the order of the chains, as
    in csrc/guesses.h: the same bins give the same chains.

    going: those of the chains that get a further guess, in order. made: guesses of each of them. kept: how
    many of each chain's guesses are worth verifying."""

    def __init__(self, gate: Gate, wanted: Sequence[int]) -> None:
        """wanted: guesses of each chain, at least 1."""
        self._rates = np.array(gate.rates, np.float32)
        self._keep, self._usual, self._each, self._passing = np.array(gate[1:5], np.float32)
        self._wanted = np.array(wanted, np.int32)
        self._going = np.arange(len(wanted))
        self._holds = np.ones(len(wanted), np.float32)
        self._kept = np.zeros(len(wanted), np.int32)
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
        """A guess of each chain that is `going` fell into these bins. others: the passes go on in any case,
        for chains that are not gated."""
        self.made += 1
        self._holds[self._going] *= self._rates[np.frombuffer(fell, np.uint8)]
        worth = self._going[self._holds[self._going] >= self._keep]
        self._kept[worth] = self.made
        worth = worth[self._wanted[worth] > self.made]
        gains = self._holds[worth] * self._usual - self._each
        self._going, gains = worth[gains > 0], gains[gains > 0]
        if len(gains) and not others and np.add.accumulate(gains)[-1] <= self._passing:
            self._going = self._going[:0]
