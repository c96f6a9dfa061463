"""What the code of a step on the device depends on besides its numbers."""

from __future__ import annotations

from typing import NamedTuple

from nextn.sampling.row_draws import Choosing


class Drafting(NamedTuple):
    """num_steps: of the deepest draft to make. extends: does the draft layer see any positions of the step?
    gated: may the cutoff end chains?"""

    num_steps: int = 0
    extends: bool = False
    gated: bool = False


class StepShape(NamedTuple):
    """rows: T, of the target and of draft extend. choosing: the most that a request asks for. longest: no row
    sees more positions."""

    requests: int
    rows: int
    drafting: Drafting
    choosing: Choosing
    longest: int
