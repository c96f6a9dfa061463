"""Where a request's pages land: in the pool, as they come.

Nobody looks at these pages before the transfer has ended, so they may hold what is not proven yet. Natively
they go there as the socket is read, 256 KiB at a time, so that they are in the core's cache until then.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from ctypes import CDLL
from threading import RLock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.checksum import of_sums
from nextn.disaggregation.framing import TAIL
from nextn.disaggregation.page_copies import PageCopies, no_sums

CHUNK = 256 << 10  # bytes


class Landing(NamedTuple):
    """pages: of a request, by their places in its prompt, which nobody else touches until the transfer
    ends."""

    copies: PageCopies
    pages: Sequence[int]

    def take(self, first: int, count: int, data: NDArray[np.uint8]) -> int:
        """Fills so many pages. Returns the checksum of what lies in them then."""
        return self.copies.write(self.pages[first : first + count], data)


class Arriving:
    """A piece on its way from a socket into its pages; a `framing.Body`. chunk: `CHUNK` bytes of memory.
    lock: held while the pool is written. wanted: whether the pages are still the request's; what comes later
    is dropped."""

    def __init__(
        self,
        landing: Landing,
        first: int,
        count: int,
        chunk: NDArray[np.uint8],
        lock: RLock,
        wanted: Callable[[], bool],
    ) -> None:
        copies = landing.copies
        native = copies.sockets
        assert native is not None
        self._native: CDLL = native
        self._pages = np.array(landing.pages[first : first + count], np.int64)
        self._runs = copies.runs(self._pages)
        self._chunk, self._lock, self._wanted = chunk, lock, wanted
        self._size = count * copies.page_bytes + TAIL
        self._sums, self._state = no_sums(), np.zeros(2, np.int64)  # Arriving of csrc/page_sockets.h

    @property
    def left(self) -> int:
        """Bytes to come."""
        return self._size - int(self._state[0]) - int(self._state[1])

    def feed(self, data: memoryview) -> None:
        """What was read already: less than a chunk."""
        held = int(self._state[1])
        self._chunk[held : held + len(data)] = np.frombuffer(data, np.uint8)
        self._state[1] += len(data)
        with self._lock:
            self._native.nx_place_pages(*self._target(), self._at(self._chunk), *self._counts())

    def fill(self, end: socket.socket) -> int:
        """Reads what is there. Returns how many bytes came, 0 at the end. Raises BlockingIOError, OSError."""
        with self._lock:
            came: int = self._native.nx_receive_pages(
                *self._target(), end.fileno(), TAIL, self._at(self._chunk), len(self._chunk), *self._counts()
            )
        if came < 0:
            raise OSError(-came, os.strerror(-came))
        return came

    def _target(self) -> tuple[object, ...]:
        return self._runs if self._wanted() else (None, *self._runs[1:])

    def _counts(self) -> tuple[int, int]:
        return self._at(self._state), self._at(self._sums)

    @staticmethod
    def _at(array: NDArray[np.generic]) -> int:
        return array.ctypes.data

    @property
    def found(self) -> int:
        """The checksum of what lies in the pages, when nothing is left."""
        return of_sums(self._sums)

    @property
    def expected(self) -> int:
        return int.from_bytes(self._chunk[:TAIL].tobytes(), "big")
