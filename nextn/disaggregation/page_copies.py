"""Copies pages out of a KV pool and into one, and makes their checksum in the same pass.

The native kernels read every byte once. Without them, or where a page has not whole rows of the checksum in a
layer, numpy copies first and reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.disaggregation.checksum import LANES, ROW, checksum, of_sums
from nextn.ops.cpu.library import NoLibrary, library


class PageCopies:
    """pool: [layers, slots, width], in this process's memory. Any thread may copy, of pages that nobody else
    writes."""

    def __init__(self, pool: Tensor, page_size: int) -> None:
        rows = pool.view(len(pool), -1, page_size * pool.shape[2]).view(torch.uint8)
        self._rows: NDArray[np.uint8] = rows.numpy()
        self._native = _native() if self._rows.shape[2] % ROW == 0 else None

    def read(self, pages: Sequence[int], into: NDArray[np.uint8]) -> int:
        """Into the flat bytes of [layers, slots, width]. Returns their checksum."""
        if self._native is not None:
            return self._pass(self._native.nx_read_pages, self._rows, pages, into)
        np.take(self._rows, list(pages), axis=1, out=self._shaped(into), mode="clip")
        return checksum(into)

    def write(self, pages: Sequence[int], data: NDArray[np.uint8]) -> int:
        """Fills pages with what `read` copied. Returns the checksum of what lies in them then, even if
        somebody wrote into `data` meanwhile."""
        if self._native is not None:
            return self._pass(self._native.nx_write_pages, data, pages, self._rows)
        own = data.copy()
        self._rows[:, list(pages)] = self._shaped(own)
        return checksum(own)

    def _pass(
        self, copy: object, source: NDArray[np.uint8], pages: Sequence[int], target: NDArray[np.uint8]
    ) -> int:
        layers, _, run = self._rows.shape
        sums, table = np.zeros(LANES, np.uint64), np.array(pages, np.int64)
        assert callable(copy)
        copy(
            source.ctypes.data, layers, self._rows.strides[0], run, table.ctypes.data, len(table),
            target.ctypes.data, sums.ctypes.data,
        )  # fmt: skip
        return of_sums(sums)

    def _shaped(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return data.reshape(len(self._rows), -1, self._rows.shape[2])


class Landing(NamedTuple):
    """A request's pages, by their places in its prompt, which nobody else touches until the transfer ends."""

    copies: PageCopies
    pages: Sequence[int]

    def take(self, first: int, count: int, data: NDArray[np.uint8]) -> int:
        """Fills them. Returns the checksum of what lies in them then."""
        return self.copies.write(self.pages[first : first + count], data)


def _native() -> CDLL | None:
    try:
        return library()
    except NoLibrary:
        return None
