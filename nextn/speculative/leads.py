"""How often a drafter's guesses hold, by how far each was ahead of the next best. Pure; see `nextn.gate`."""

from __future__ import annotations

from collections.abc import Sequence

# Assumed of each bin before anything is known, and as how many guesses that counts.
_PRIOR = (0.45, 0.6, 0.7, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99)
_PRIOR_WEIGHT = 6.0
_REMEMBERED = 4000.0  # guesses of a bin; texts change
_LEAST, _MOST = 1e-3, 0.999


class Leads:
    """How often guesses hold, by their lead. made: also of those that were not verified."""

    def __init__(self) -> None:
        self._held = [_PRIOR_WEIGHT * p for p in _PRIOR]
        self._seen = [_PRIOR_WEIGHT] * len(_PRIOR)
        self._made = [_PRIOR_WEIGHT] * len(_PRIOR)

    def note(self, bins: Sequence[int], verified: int, accepted: int) -> None:
        """A chain whose guesses fell into these bins: how many were verified, how many of these held."""
        held, seen, made = self._held, self._seen, self._made
        for b in bins:
            made[b] += 1.0
        for b in bins[:accepted]:
            held[b] += 1.0
            seen[b] += 1.0
        if accepted < verified:
            seen[bins[accepted]] += 1.0

    def forget(self) -> None:
        """What is long ago counts less."""
        for b, seen in enumerate(self._seen):
            if seen > _REMEMBERED:
                self._seen[b], self._held[b] = seen / 2, self._held[b] / 2
        if max(self._made) > _REMEMBERED:
            self._made = [m / 2 for m in self._made]

    def rates(self) -> list[float]:
        """Of each bin."""
        return [min(_MOST, max(_LEAST, h / s)) for h, s in zip(self._held, self._seen, strict=True)]

    def usual(self) -> float:
        """How often a guess holds of which nothing is known yet."""
        rates = self.rates()
        return sum(m * r for m, r in zip(self._made, rates, strict=True)) / sum(self._made)
