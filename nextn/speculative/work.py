"""What a step computed, as the executor reports it. The time of a step is predicted from these numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StepWork(NamedTuple):
    """rows: of the target. extended: rows of the drafter's first pass. passes: rows of each further pass of
    the drafter. requests: number that decode. drafts: number of draft rows. context: positions that decoding
    requests attend to."""

    rows: int
    extended: int = 0
    passes: Sequence[int] = ()
    requests: int = 0
    drafts: int = 0
    context: int = 0

    @property
    def only_decodes(self) -> bool:
        """Whether the step does little else: few rows of prompts, and few positions that the drafter catches
        up on."""
        own = self.requests + self.drafts
        return self.rows <= 1.25 * own and self.extended <= 2 * own
