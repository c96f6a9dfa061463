"""Copies pages out of a KV pool and into one, and computes their checksum in the same pass.

The native kernels read every byte once. numpy copies first and then reads again. It is used without the
kernels, or if a page's bytes in one layer are not a multiple of the checksum's row.
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

from nextn.disaggregation.checksum import ROW, checksum, kernels, no_sums, of_sums


class PageCopies:
    """pool: [layers, slots, width], in this process's memory. Any thread may copy pages that nobody writes at
    the same time. native: the kernels; None if they are not used."""

    def __init__(self, pool: Tensor, page_size: int) -> None:
        rows = pool.view(len(pool), -1, page_size * pool.shape[2]).view(torch.uint8)
        self._rows: NDArray[np.uint8] = rows.numpy()
        self.native = kernels() if self._rows.shape[2] % ROW == 0 else None

    @property
    def page_bytes(self) -> int:
        layers, _, run = self._rows.shape
        return int(layers * run)

    @property
    def sockets(self) -> CDLL | None:
        """The kernels, if they can move pages between the pool and a socket, else None."""
        return None if sys.platform == "win32" else self.native

    def runs(self, pages: NDArray[np.int64]) -> tuple[Any, ...]:
        """The first arguments of the native functions. The caller keeps `pages` alive during the call."""
        layers, _, run = self._rows.shape
        return self._rows.ctypes.data, layers, self._rows.strides[0], run, pages.ctypes.data, len(pages)

    def read(self, pages: Sequence[int], into: NDArray[np.uint8]) -> int:
        """Copies pages into `into`, the flat bytes of [layers, slots, width]. Returns their checksum."""
        if self.native is not None:
            table, sums = np.array(pages, np.int64), no_sums()
            self.native.nx_read_pages(*self.runs(table), into.ctypes.data, sums.ctypes.data)
            return of_sums(sums)
        np.take(self._rows, list(pages), axis=1, out=self._shaped(into), mode="clip")
        return checksum(into)

    def write(self, pages: Sequence[int], data: NDArray[np.uint8]) -> int:
        """Fills pages with bytes from `read`. Returns the checksum of the bytes that were written. It is
        correct even if another process changes `data` during the call."""
        if self.native is not None:
            table, sums = np.array(pages, np.int64), no_sums()
            self.native.nx_write_pages(*self.runs(table), data.ctypes.data, sums.ctypes.data)
            return of_sums(sums)
        own = data.copy()
        self._rows[:, list(pages)] = self._shaped(own)
        return checksum(own)

    def _shaped(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return data.reshape(len(self._rows), -1, self._rows.shape[2])
