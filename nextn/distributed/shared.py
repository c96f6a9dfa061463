"""Ranks of one machine, which exchange data in shared memory.

    page 0      the meeting (NxMeeting of csrc/ranks.h); from byte BEATS on, a counter of each rank
    the rest    arrays that the ranks fill together (csrc/forward.h)

`nextn.distributed.memory` makes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Mapping, Sequence
from ctypes import pointer
from typing import Any

import torch
from torch import Tensor

from nextn.config import usable_cores
from nextn.distributed.memory import HEADER, Memory, Numbers
from nextn.distributed.ranks import Ranks
from nextn.ops.cpu import interface as kernels
from nextn.ops.cpu.library import NoLibrary, library

BEATS = 1024
SPINS = 4000  # of a waiting rank, before it sleeps: about 50 us, as in csrc/pool.h
FEW_SPINS = 50  # if ranks share cores, because another rank needs this rank's core


def spins(threads: int) -> int:
    """How often a waiting rank looks before it sleeps. threads: of all ranks of this machine."""
    return SPINS if threads <= usable_cores() else FEW_SPINS


def address(view: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class SharedRanks(Ranks):
    """Ranks of one machine. threads: of all of them."""

    def __init__(self, rank: int, size: int, memory: Memory, threads: int, most_rows: int) -> None:
        super().__init__(rank, size, most_rows)
        self._memory, self._header = memory, memory.mapped(HEADER)
        self._beats = Numbers(self._header, BEATS)
        self._spins = spins(threads)
        self._arrays: mmap.mmap | None = None

    def shared_by(self, model: kernels.Model, layers: int) -> Any:
        self._arrays = self._memory.mapped(library().nx_shared_bytes(model, layers, self.most_rows))
        at = address(self._arrays)
        self._struct = kernels.Ranks(self.rank, self.size, at, None, self.most_rows, self._spins, 0)
        return pointer(self._struct)

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        size = HEADER + whole.nbytes
        if self._arrays is None or len(self._arrays) < size:
            self._arrays = self._memory.mapped(size)
        if not whole.numel():
            return
        shared = torch.frombuffer(self._arrays, dtype=whole.dtype, count=whole.numel(), offset=HEADER)
        shared, (begin, end) = shared.view(whole.shape), bounds[self.rank : self.rank + 2]
        shared[:, begin:end] = whole[:, begin:end]
        self._meet()
        whole[:, :begin], whole[:, end:] = shared[:, :begin], shared[:, end:]
        self._meet()  # before it is written again

    def _meet(self) -> None:
        begin = time.perf_counter()
        if library().nx_meet(address(self._header), self.size, self._spins):
            raise self.gone()
        self._seconds += time.perf_counter() - begin

    def _wake(self) -> None:
        with contextlib.suppress(NoLibrary):  # without it, as on GPUs, no rank waits here
            library().nx_break(address(self._header))

    def beat(self) -> None:
        self._beats[self.rank] += 1

    def beats(self) -> Mapping[int, int | None]:
        """Rank 0 watches all others, and they watch rank 0."""
        counts = self._beats.first(self.size)
        return dict(enumerate(counts[1:], start=1)) if self.rank == 0 else {0: counts[0]}
