"""Every rank shows that it lives, and looks whether the others do: one that is stopped (SIGSTOP, a frozen
container, a machine that swaps) does not end, and would be waited for without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nextn.distributed.shared import SharedRanks

EVERY = 0.2  # seconds between two beats
SILENT = 4.0  # seconds after which a rank counts as gone


class Pulse:
    """Beats in a thread of its own until `stop`. lost(rank): called once, in that thread, of the first rank
    that has been silent for too long."""

    def __init__(self, ranks: SharedRanks, lost: Callable[[int], None], silent: float = SILENT) -> None:
        self._ranks, self._lost, self._silent = ranks, lost, silent
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nextn-pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.monotonic()
        beats, seen = self._ranks.beats(), [last] * self._ranks.size
        while not self._stopped.wait(EVERY):
            self._ranks.beat()
            now = time.monotonic()
            # Who was stopped itself knows nothing of the others in that time.
            paused = now - last > self._silent / 2
            last = now
            found = self._ranks.beats()
            for rank, (before, count) in enumerate(zip(beats, found, strict=True)):
                if paused or count != before or rank == self._ranks.rank:
                    seen[rank] = now
                elif now - seen[rank] > self._silent:
                    self._lost(rank)
                    return
            beats = found
