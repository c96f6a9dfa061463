"""Memory for pieces that is used again, the last one first: it is still in the cache, and mapped."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

KEPT = 16 << 20  # bytes


class Buffers:
    """Of `most` bytes each."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, max(2, KEPT // most)
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes, used again once nothing refers to them, nor to a part or a tensor made of them."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(self._most, np.uint8)
        # A part of an array refers to the array that owns the memory, unless that is no array.
        found = np.frombuffer(buffer.data, np.uint8, size)
        weakref.finalize(found, self._give_back, buffer).atexit = False
        return found

    def _give_back(self, buffer: NDArray[np.uint8]) -> None:
        if len(self._free) < self._kept:
            self._free.append(buffer)
