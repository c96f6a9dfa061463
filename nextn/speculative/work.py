"""What a step ran: the executor tells, and what a step costs follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StepWork(NamedTuple):
    """What a step ran. rows: of the target. extended: rows of the drafter's first pass. passes: rows of each
    further one. requests: that decode. drafts: rows that were drafts. context: positions they read."""

    rows: int
    extended: int = 0
    passes: Sequence[int] = ()
    requests: int = 0
    drafts: int = 0
    context: int = 0
