"""What the code of a step on the device depends on besides its numbers."""

from __future__ import annotations

from typing import NamedTuple

from nextn.sampling.row_draws import Choosing

FEW_ROWS = 16  # take no longer than one: a tile of the products has as many


class Drafting(NamedTuple):
    """num_steps: of the deepest draft to make. extends: does the draft layer see any positions of the step?
    gated: may the cutoff end chains?"""

    num_steps: int = 0
    extends: bool = False
    gated: bool = False


class StepShape(NamedTuple):
    """rows: T, of the target and of draft extend. choosing: the most that a request asks for. longest: no row
    sees more positions.

    A step of one shape may run in that of another which has room for it: idle requests and rows change
    nothing, and drafts end where each request's own depth says.
    """

    requests: int
    rows: int
    drafting: Drafting
    choosing: Choosing
    longest: int

    def covers(self, other: StepShape) -> bool:
        """May steps of the other shape run in this one, at up to about twice the cost?"""
        mine, its = self.drafting, other.drafting
        return (
            self.choosing == other.choosing
            and other.requests <= self.requests <= 2 * other.requests
            and other.rows <= self.rows <= max(FEW_ROWS, 2 * other.rows)
            and other.longest <= self.longest <= 4 * other.longest
            and its.num_steps <= mine.num_steps <= its.num_steps + 2
            and mine.extends >= its.extends
            and mine.gated >= its.gated
        )
