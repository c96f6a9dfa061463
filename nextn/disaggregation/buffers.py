"""Reusable buffers for pieces of pages. The buffer freed last is used first: it is still mapped and in the
CPU cache."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

KEPT = 16 << 20  # bytes
PAGE = 4096  # bytes; the kernel copies much faster to aligned memory


class Buffers:
    """Buffers of `most` bytes each. They begin on a page of memory."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, max(2, KEPT // most)
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """Returns an array of `size` bytes, at most `most`. The buffer is used again when nothing refers to
        the array, a part of it or a tensor made from it."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(self._most + PAGE, np.uint8)
            buffer = buffer[-buffer.ctypes.data % PAGE :]
        # A slice of a numpy array refers to the array that owns the memory. `frombuffer` makes this array the
        # owner.
        found = np.frombuffer(buffer.data, np.uint8, size)
        weakref.finalize(found, self._give_back, buffer).atexit = False
        return found

    def _give_back(self, buffer: NDArray[np.uint8]) -> None:
        if len(self._free) < self._kept:
            self._free.append(buffer)
