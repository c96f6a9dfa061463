"""What automatic depth does, in the log: a line when drafting begins or ends, and now and then between."""

from __future__ import annotations

import logging
import math

from nextn.scheduler.stats import DraftingState

log = logging.getLogger("nextn.decode")

# Seconds of load between two lines, at least: where drafting began or ended, and where it stayed as it was.
CHANGED, STAYED = 5.0, 30.0


class DraftingLog:
    """A change that is undone within `CHANGED` seconds of the last line is not told."""

    def __init__(self, logs: bool) -> None:
        self._logs = logs
        self.restart()

    def restart(self) -> None:
        """A new engine: its first word is told at once."""
        self._told: bool | None = None
        self._seconds = math.inf  # of load, since the last line

    def update(self, auto: DraftingState | None, seconds: float) -> None:
        """After a step. seconds: that the engine was busy for it."""
        if auto is None or not self._logs:
            return
        self._seconds += seconds
        if auto.requests and self._seconds >= (STAYED if auto.drafting is self._told else CHANGED):
            log.info(line(auto))
            self._told, self._seconds = auto.drafting, 0.0


def line(auto: DraftingState) -> str:
    """
    >>> line(DraftingState(False, 16, 0.94, "rows cost too much"))
    'auto: not drafting at 16 requests; drafts would make 0.94 x (rows cost too much)'
    >>> line(DraftingState(True, 1, 1.5, ""))
    'auto: drafting at 1 request; drafts make 1.50 x'
    """
    at = "1 request" if auto.requests == 1 else f"{auto.requests} requests"
    does, make = ("drafting", "make") if auto.drafting else ("not drafting", "would make")
    why = f" ({auto.reason})" if auto.reason else ""
    return f"auto: {does} at {at}; drafts {make} {auto.gain:.2f} x{why}"
