"""How often the guesses of each source hold, request by request. Pure.

A source is a number: 0 for the NextN layer, n for n-grams that rest on a suffix of n tokens. Its rate is the
share of guessed tokens that held among those that could (all before them had held). A request begins with
what all requests have taught, and that with a prior; old news fades.
"""

from __future__ import annotations

from collections.abc import Sequence

PRIORS = {0: 0.65, 2: 0.35, 3: 0.5, 4: 0.7}
OF_PRIOR, OF_ALL = 20.0, 6.0  # guesses that they weigh
KEPT, KEPT_OF_ALL = 0.95, 0.998  # of old news, at each guess


class _Counts:
    def __init__(self) -> None:
        self.tested = self.held = 0.0

    def add(self, tested: int, held: int, kept: float) -> None:
        self.tested = self.tested * kept**tested + tested
        self.held = self.held * kept**tested + held

    def rate(self, expected: float, weight: float) -> float:
        return (expected * weight + self.held) / (weight + self.tested)


class Trust:
    def __init__(self) -> None:
        self._all = {source: _Counts() for source in PRIORS}
        self._own: dict[str, dict[int, _Counts]] = {}

    def rate(self, rid: str, source: int) -> float:
        of_all = self._all[source].rate(PRIORS[source], OF_PRIOR)
        own = self._own.get(rid, {}).get(source)
        return of_all if own is None else own.rate(of_all, OF_ALL)

    def learn(self, rid: str, source: int, guess: Sequence[int], came: Sequence[int]) -> None:
        """What a source guessed, verified or not, and the tokens that came."""
        held = 0
        while held < min(len(guess), len(came)) and guess[held] == came[held]:
            held += 1
        tested = min(held + 1, len(guess), len(came))
        if tested:
            own = self._own.setdefault(rid, {}).setdefault(source, _Counts())
            own.add(tested, held, KEPT)
            self._all[source].add(tested, held, KEPT_OF_ALL)

    def forget(self, rid: str) -> None:
        self._own.pop(rid, None)
