"""Every rank shows that it lives, and looks whether the others do: one that is stopped (SIGSTOP, a frozen
container, a machine that swaps) does not end, and would be waited for without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

EVERY = 0.2  # seconds between two beats
SILENT = 4.0  # seconds after which a rank counts as gone
LOADING = 60.0  # the same while it loads the model: whatever reads a file may hold Python's lock for long


class Beating(Protocol):
    def beat(self) -> None:
        """Shows the others that this rank lives."""

    def beats(self) -> Mapping[int, int | None]:
        """How often each rank that this one watches has beaten; None: it has ended."""


class Pulse:
    """Beats in a thread of its own until `stop`. lost(rank, what): called once, in that thread, of the first
    rank that has ended, or has been silent for too long: `what` of both it was. silent: seconds."""

    def __init__(self, ranks: Beating, lost: Callable[[int, str], None], silent: float = SILENT) -> None:
        self._ranks, self._lost, self._silent = ranks, lost, silent
        self._since = time.monotonic()  # silence before that does not count
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nextn-pulse", daemon=True)
        self._thread.start()

    def expect(self, silent: float) -> None:
        """From now on a rank may be silent for so many seconds."""
        self._since = time.monotonic()  # first: the thread may look in between
        self._silent = silent

    def stop(self) -> None:
        self._stopped.set()
        if threading.current_thread() is not self._thread:  # which `lost` may end
            self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        beats = self._ranks.beats()
        seen = dict.fromkeys(beats, last)
        while not self._stopped.wait(EVERY):
            self._ranks.beat()
            now = time.monotonic()
            # Who was stopped itself knows nothing of the others in that time.
            paused = now - last > self._silent / 2
            last = now
            found = self._ranks.beats()
            for rank, count in found.items():
                if count is None:
                    self._lost(rank, "has ended")
                    return
                if paused or count != beats.get(rank):
                    seen[rank] = now
                elif now - max(seen[rank], self._since) > self._silent:
                    self._lost(rank, "does not answer")
                    return
            beats = found
