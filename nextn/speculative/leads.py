"""How often a drafter's guesses hold, by how far each was ahead of the next best. Pure; see `nextn.gate`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

# Assumed of each bin before anything is known, and as how many guesses that counts.
_PRIOR = (0.45, 0.6, 0.7, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99)
_PRIOR_WEIGHT = 6.0
_REMEMBERED = 4000.0  # guesses of a bin; texts change
_LEAST, _MOST = 1e-3, 0.999


class Leads:
    """How often guesses hold, by their lead. made: also of those that were not verified."""

    def __init__(self) -> None:
        prior = np.array(_PRIOR)
        self._seen = np.full(len(prior), _PRIOR_WEIGHT)
        self._held, self._made = self._seen * prior, self._seen.copy()
        self._bins: list[bytes] = []
        self._outcomes = array("i")

    def note(self, bins: bytes, verified: int, accepted: int) -> None:
        """A chain whose guesses fell into these bins: how many were verified, how many of these held. It
        counts from the next `learn` on."""
        self._bins.append(bins)
        self._outcomes.extend((verified, accepted))

    def learn(self) -> None:
        """Takes in what was noted; what is long ago counts less."""
        if self._bins:
            self._count(self._bins, np.array(self._outcomes).reshape(-1, 2))
            self._bins, self._outcomes = [], array("i")
        old = np.where(self._seen > _REMEMBERED, 0.5, 1.0)
        self._seen *= old
        self._held *= old
        if self._made.max() > _REMEMBERED:
            self._made *= 0.5

    def _count(self, chains: Sequence[bytes], outcomes: np.ndarray) -> None:
        bins, made = np.frombuffer(b"".join(chains), np.uint8), np.array([len(c) for c in chains])
        verified, accepted = outcomes.T
        depth = np.arange(len(bins)) - np.repeat(made.cumsum() - made, made)
        held = depth < np.repeat(accepted, made)
        seen = depth < np.repeat(np.minimum(verified, accepted + 1), made)
        n = len(self._made)
        self._made += np.bincount(bins, minlength=n)
        self._seen += np.bincount(bins[seen], minlength=n)
        self._held += np.bincount(bins[held], minlength=n)

    def rates(self) -> list[float]:
        """Of each bin."""
        rates: list[float] = np.clip(self._held / self._seen, _LEAST, _MOST).tolist()
        return rates

    def usual(self) -> float:
        """How often a guess holds of which nothing is known yet."""
        return float(self._made @ np.array(self.rates()) / self._made.sum())
