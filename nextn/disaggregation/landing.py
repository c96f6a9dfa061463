"""Writes received pages into the KV pool as they arrive.

Nobody reads these pages before the transfer has ended, so they may contain data that is not verified yet. The
native kernels write them while they read the socket, 256 KiB at a time, so the data is in the core's cache.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from ctypes import CDLL
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.checksum import ROW, no_sums, of_sums
from nextn.disaggregation.framing import TAIL
from nextn.disaggregation.page_copies import PageCopies

CHUNK = ROW + (256 << 10)  # bytes; the first row is for a part of a row (struct Arriving in page_sockets.h)
WAKE = 512 << 10  # bytes of a piece that wake the thread: a wake-up costs both sides time


class Landing(NamedTuple):
    """Where the pages of one request go. pages: page numbers in the pool, by index in the prompt. Nobody else
    uses these pages until the transfer ends."""

    copies: PageCopies
    pages: Sequence[int]

    def take(self, first: int, count: int, data: NDArray[np.uint8]) -> int:
        """Fills `count` pages from index `first` on. Returns the checksum of the bytes that were written."""
        return self.copies.write(self.pages[first : first + count], data)


class Arriving:
    """The body of one piece, which goes from a socket directly into pages (a `framing.Body`). chunk: `CHUNK`
    bytes of aligned memory. lock: held while the pool is written. wanted: whether the request still owns the
    pages; if not, the rest of the data is dropped."""

    def __init__(
        self,
        landing: Landing,
        first: int,
        count: int,
        chunk: NDArray[np.uint8],
        lock: Lock,
        wanted: Callable[[], bool],
    ) -> None:
        copies = landing.copies
        native = copies.sockets
        assert native is not None
        self._native: CDLL = native
        self._pages = np.array(landing.pages[first : first + count], np.int64)
        self._runs = copies.runs(self._pages)
        self._no_runs = (None, *self._runs[1:])  # the data is dropped
        self._chunk, self._lock, self._wanted = chunk, lock, wanted
        self._size = count * copies.page_bytes + TAIL
        self._sums, self._state = no_sums(), np.zeros(2, np.int64)  # struct Arriving (page_sockets.h)
        self._at_chunk = chunk.ctypes.data
        self._counts = self._state.ctypes.data, self._sums.ctypes.data
        self._patient = False  # whether less than `WAKE` bytes do not wake the thread

    @property
    def left(self) -> int:
        """Number of bytes that have not arrived yet."""
        return self._size - int(self._state[0]) - int(self._state[1])

    def feed(self, data: memoryview) -> None:
        self._chunk[ROW : ROW + len(data)] = np.frombuffer(data, np.uint8)
        with self._lock:
            self._native.nx_place_pages(*self._target, self._at_chunk, len(data), *self._counts)

    def fill(self, end: socket.socket) -> int:
        """Reads from the socket without waiting. Returns the number of bytes read; 0 if the stream has ended.
        Raises BlockingIOError, OSError."""
        with self._lock:
            came: int = self._native.nx_receive_pages(
                *self._target, end.fileno(), TAIL, self._at_chunk, len(self._chunk), *self._counts
            )
        if left := self.left:
            self._patient = True
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(left, WAKE))
        elif self._patient:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        if came < 0:
            raise OSError(-came, os.strerror(-came))
        return came

    @property
    def _target(self) -> tuple[object, ...]:
        return self._runs if self._wanted() else self._no_runs

    @property
    def found(self) -> int:
        """The checksum of the bytes written to the pages. Valid when `left` is 0."""
        return of_sums(self._sums)

    @property
    def expected(self) -> int:
        return int.from_bytes(self._chunk[ROW - TAIL : ROW].tobytes(), "big")
