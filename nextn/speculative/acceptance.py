"""How often the guesses of each source are accepted, for each request.

A source is a number: 0 for the NextN layer, n for n-grams found by a suffix of n tokens. Its rate is the
share of accepted tokens among the guesses that could be accepted (all before them were accepted). A request
begins with the rate of all requests, and that rate begins with a prior. Old guesses lose weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PRIORS = {0: 0.65, 2: 0.35, 3: 0.5, 4: 0.7}
OF_PRIOR, OF_ALL = 20.0, 6.0  # weight of the prior and of the rate of all requests, in guesses
KEPT, KEPT_OF_ALL = 0.95, 0.998  # factor for the weight of older guesses, at each guess


class Counts:
    def __init__(self) -> None:
        self.tested = self.held = 0.0

    def add(self, tested: int, held: int, kept: float) -> None:
        self.tested = self.tested * kept**tested + tested
        self.held = self.held * kept**tested + held

    def rate(self, expected: float, weight: float) -> float:
        return (expected * weight + self.held) / (weight + self.tested)


class Acceptance:
    """The counts of all requests. `own`, a parameter: the counts of one request, by source."""

    def __init__(self) -> None:
        self._all = {source: Counts() for source in PRIORS}

    def rate(self, own: Mapping[int, Counts], source: int) -> float:
        of_all = self._all[source].rate(PRIORS[source], OF_PRIOR)
        return own[source].rate(of_all, OF_ALL) if source in own else of_all

    def learn(self, own: dict[int, Counts], source: int, guess: Sequence[int], came: Sequence[int]) -> None:
        """Compares what a source guessed, verified or not, with the tokens that were committed."""
        held = 0
        while held < min(len(guess), len(came)) and guess[held] == came[held]:
            held += 1
        tested = min(held + 1, len(guess), len(came))
        if tested:
            own.setdefault(source, Counts()).add(tested, held, KEPT)
            self._all[source].add(tested, held, KEPT_OF_ALL)
