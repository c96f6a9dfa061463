"""The shape of a step on the device: everything that its code depends on, besides the numbers."""

from __future__ import annotations

from typing import NamedTuple

from nextn.sampling.row_draws import Choosing

FEW_ROWS = 16  # take no longer than one row: a tile of the products has this number of rows


class Drafting(NamedTuple):
    """num_steps: depth of the deepest draft to make. extends: whether the draft layer runs over positions of
    the step. cut: whether the cutoff may end chains."""

    num_steps: int = 0
    extends: bool = False
    cut: bool = False


class StepShape(NamedTuple):
    """rows: T, of the target and of draft extend. choosing: the most general kind of choice of a request.
    longest: maximum number of positions that a row attends to.

    A step of one shape can run in a larger shape that covers it: idle requests and rows change nothing, and
    drafts end at each request's own depth.
    """

    requests: int
    rows: int
    drafting: Drafting
    choosing: Choosing
    longest: int

    def covers(self, other: StepShape) -> bool:
        """Whether steps of the other shape can run in this one, in up to about twice the time."""
        mine, its = self.drafting, other.drafting
        return (
            self.choosing == other.choosing
            and other.requests <= self.requests <= 2 * other.requests
            and other.rows <= self.rows <= max(FEW_ROWS, 2 * other.rows)
            and other.longest <= self.longest <= 4 * other.longest
            and its.num_steps <= mine.num_steps <= its.num_steps + 2
            and mine.extends >= its.extends
            and mine.cut >= its.cut
        )
