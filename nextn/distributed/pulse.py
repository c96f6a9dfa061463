"""Heartbeats: every rank increases a counter and watches those of the others. A rank that does not run
(SIGSTOP, a frozen container, a machine that swaps) does not end, so without this the others would wait
forever. If the rank is on the same machine, the system says that it is stopped, which takes less time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from nextn.distributed.life import StopWatch

EVERY = 0.2  # seconds between two beats
SILENT = 4.0  # seconds without a beat after which a rank counts as gone
LOADING = 60.0  # the same while it loads the model, because reading a file may hold Python's lock for long


class Beating(Protocol):
    def beat(self) -> None:
        """Increases this rank's counter."""

    def beats(self) -> Mapping[int, int | None]:
        """How often each rank that this one watches has beaten; None: it has ended."""


class Pulse:
    """Runs in its own thread until `stop`. lost(rank, what): called once, in that thread, for the first rank
    that has ended, is stopped or was silent for too long; `what` says which of these. silent: seconds.
    watches: of those ranks that are processes of this machine."""

    def __init__(
        self,
        ranks: Beating,
        lost: Callable[[int, str], None],
        silent: float = SILENT,
        watches: Mapping[int, StopWatch] = MappingProxyType({}),
    ) -> None:
        self._ranks, self._lost, self._silent, self._watches = ranks, lost, silent, watches
        self._since = time.monotonic()  # silence before that does not count
        self._stopped = threading.Event()
        ranks.beat()  # at once: some others watch only ranks that have begun to beat
        self._thread = threading.Thread(target=self._run, name="nextn-pulse", daemon=True)
        self._thread.start()

    def expect(self, silent: float) -> None:
        """From now on, a rank may be silent for `silent` seconds."""
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
            # If this process itself was stopped, it does not know what the others did in that time.
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
            for rank, watch in self._watches.items():
                if watch.stopped:
                    self._lost(rank, "is stopped")
                    return
