"""The order of the runs: scenario by scenario, load by load, and each side once in every round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """One load: n prompts, either n at once or arriving at a rate."""

    prompts: int
    concurrency: int | None = None
    request_rate: float = math.inf

    @property
    def value(self) -> float:
        return self.request_rate if self.concurrency is None else self.concurrency

    @property
    def axis(self) -> str:
        """The name of `value`."""
        return "request rate" if self.concurrency is None else "concurrency"

    def __str__(self) -> str:
        return f"{self.axis} {self.value:g}"


def make_levels(concurrencies: Sequence[int], rates: Sequence[float], num_prompts: int | None) -> list[Level]:
    """Makes the levels in ascending order; one of the two lists is empty. Without `num_prompts` a level has
    twice the concurrency, or the arrivals of ten seconds, and at least 8 prompts. Raises ValueError."""
    for name, values in (("--concurrency", concurrencies), ("--request-rate", rates)):
        for value in values:
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} {value}: every value must be above 0")
            if values.count(value) > 1:
                raise ValueError(f"{name} has {value:g} twice")
    most = max(concurrencies, default=0)
    if num_prompts is not None and num_prompts < most:
        raise ValueError(f"--num-prompts is {num_prompts}; --concurrency {most} needs {most} at least")
    return [
        *(Level(num_prompts or max(8, 2 * c), concurrency=c) for c in sorted(concurrencies)),
        *(Level(num_prompts or max(8, math.ceil(10 * r)), request_rate=r) for r in sorted(rates)),
    ]


@dataclass(frozen=True)
class Turn:
    """One load on one side. scenario, level, side: indices; `round` starts at 1. Turns with the same `serial`
    follow each other, one for each side, and send the same prompts."""

    scenario: int
    level: int
    round: int
    side: int
    serial: int


def turns(scenarios: int, levels: int, rounds: int, sides: int) -> Iterator[Turn]:
    """Yields the turns. At each load the sides alternate (A B C, A C B), so that a machine that slows down
    slows all of them. The first side always goes first: the others are compared with it."""
    serial = 0
    for scenario in range(scenarios):
        for level in range(levels):
            for number in range(1, rounds + 1):
                for side in (0, *range(1, sides)[:: 1 if number % 2 else -1]):
                    yield Turn(scenario, level, number, side, serial)
                serial += 1
