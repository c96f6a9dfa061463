"""How long ranks that compute a step together wait for each other, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PHASES = ("prefill", "decode", "idle")
REASONS = ("step", "dispatch", "combine", "slices", "group", "moves")


class Waits(NamedTuple):
    """Seconds for which a rank waited, by what it waited for.

    step: that all groups begin the step. A group that still drafts is late. dispatch: rows for its experts.
    combine: results for its own rows. slices: ranks that have other columns of its experts. group: the other
    ranks of its own group. moves: counts of rows, and experts that move.
    others: of all these, the part that does not depend on this group's rows, because other groups were late.
    """

    step: float = 0.0
    dispatch: float = 0.0
    combine: float = 0.0
    slices: float = 0.0
    group: float = 0.0
    moves: float = 0.0
    others: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.by_reason)

    @property
    def by_reason(self) -> tuple[float, ...]:
        """In the order of `REASONS`."""
        return self[: len(REASONS)]

    def since(self, before: Waits) -> Waits:
        return Waits(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Waits) -> Waits:
        return Waits(*(a + b for a, b in zip(self, other, strict=True)))


NO_WAITS = Waits()


@dataclass(slots=True)
class Phase:
    """Totals of an engine's steps of one phase, in seconds. steps: the whole steps. waits: the part in which
    its first rank waited."""

    steps: float = 0.0
    waits: Waits = NO_WAITS

    def plus(self, other: Phase) -> Phase:
        return Phase(self.steps + other.steps, self.waits.plus(other.waits))
