"""Copies pages out of a KV pool and into one, and makes their checksum in the same pass.

The native kernels read every byte once. Without them, or where a page has not whole rows of the checksum in a
layer, numpy copies first and reads again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.disaggregation.checksum import LANES, ROW, checksum, of_sums
from nextn.ops.cpu.library import NoLibrary, library


class PageCopies:
    """pool: [layers, slots, width], in this process's memory. Any thread may copy, of pages that nobody else
    writes. native: None without the kernels."""

    def __init__(self, pool: Tensor, page_size: int) -> None:
        rows = pool.view(len(pool), -1, page_size * pool.shape[2]).view(torch.uint8)
        self._rows: NDArray[np.uint8] = rows.numpy()
        self.native = _native() if self._rows.shape[2] % ROW == 0 else None

    @property
    def page_bytes(self) -> int:
        layers, _, run = self._rows.shape
        return int(layers * run)

    @property
    def sockets(self) -> CDLL | None:
        """The kernels, where they can move pages between the pool and a socket."""
        return None if sys.platform == "win32" else self.native

    def runs(self, pages: NDArray[np.int64]) -> tuple[Any, ...]:
        """The native functions' first arguments. pages: kept alive by the caller."""
        layers, _, run = self._rows.shape
        return self._rows.ctypes.data, layers, self._rows.strides[0], run, pages.ctypes.data, len(pages)

    def read(self, pages: Sequence[int], into: NDArray[np.uint8]) -> int:
        """Into the flat bytes of [layers, slots, width]. Returns their checksum."""
        if self.native is not None:
            table, sums = np.array(pages, np.int64), no_sums()
            self.native.nx_read_pages(*self.runs(table), into.ctypes.data, sums.ctypes.data)
            return of_sums(sums)
        np.take(self._rows, list(pages), axis=1, out=self._shaped(into), mode="clip")
        return checksum(into)

    def write(self, pages: Sequence[int], data: NDArray[np.uint8]) -> int:
        """Fills pages with what `read` copied. Returns the checksum of what lies in them then, even if
        somebody wrote into `data` meanwhile."""
        if self.native is not None:
            table, sums = np.array(pages, np.int64), no_sums()
            self.native.nx_write_pages(*self.runs(table), data.ctypes.data, sums.ctypes.data)
            return of_sums(sums)
        own = data.copy()
        self._rows[:, list(pages)] = self._shaped(own)
        return checksum(own)

    def _shaped(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return data.reshape(len(self._rows), -1, self._rows.shape[2])


def no_sums() -> NDArray[np.uint64]:
    return np.zeros(LANES, np.uint64)


def _native() -> CDLL | None:
    try:
        return library()
    except NoLibrary:
        return None
