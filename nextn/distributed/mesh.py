"""Ranks on several machines: a TCP connection between every two of them, over which outputs of products are
sent as soon as they are computed (csrc/mesh.h).

torch.distributed's Gloo is not used. Here a wait ends at once when a rank ends, and a thread can end it. Gloo
has only a time limit. Also, a gather takes much less time (docs/parallel.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from array import array
from collections.abc import Mapping, Sequence
from ctypes import byref, pointer
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nextn.config import usable_cores
from nextn.distributed.ranks import Ranks
from nextn.distributed.signs import Signs
from nextn.ops.cpu import interface as kernels
from nextn.ops.cpu.library import library

SPINS, FEW_SPINS = 100, 2  # checks of all sockets before a rank sleeps: about 100 us; FEW if cores are shared


class MeshRanks(Ranks):
    """data: a connected socket to each other rank, that of this one None. signs: connected sockets for signs
    of life, at rank 0 one to each other rank, at another rank one to rank 0. threads: of this rank and of
    others on the same machine. Takes the sockets over."""

    def __init__(
        self,
        rank: int,
        data: Sequence[socket.socket | None],
        signs: Mapping[int, socket.socket],
        threads: int,
        most_rows: int,
    ) -> None:
        super().__init__(rank, len(data), most_rows)
        self._data, self._signs, self._threads = data, Signs(signs), threads
        self._sockets = array("i", [-1 if s is None else s.fileno() for s in data])
        self.sockets = self._sockets.buffer_info()[0]
        self.spins = SPINS if threads <= usable_cores() else FEW_SPINS
        self._own = kernels.Ranks(rank, self.size, None, self.sockets, most_rows, self.spins, 0)
        self._struct = self._own

    def part(self, ranks: range) -> MeshRanks:
        """This rank as a member of a part of the ranks, over the same sockets."""
        data = self._data[ranks.start : ranks.stop]
        return MeshRanks(self.rank - ranks.start, data, {}, self._threads, self.most_rows)

    def shared_by(self, model: kernels.Model, layers: int) -> Any:
        return pointer(self._own)

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        assert whole.is_contiguous()
        if not whole.numel():
            return
        each = whole.element_size()
        at = (ctypes.c_int64 * len(bounds))(*(bound * each for bound in bounds))
        if library().nx_gather(byref(self._own), whole.data_ptr(), len(whole), whole.shape[1] * each, at):
            raise self.gone()

    def swap(self, out: Sequence[NDArray[np.uint8]], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        """All-to-all: sends out[r] to rank r, and returns what each rank sent to this one. sizes: bytes from
        each rank, which both sides know. Nothing is sent to this rank itself. Raises PeerGone."""
        bounds = ctypes.c_int64 * (self.size + 1)
        out_at, in_at = bounds(0, *accumulate(map(len, out))), bounds(0, *accumulate(sizes))
        sent, found = np.concatenate(out), np.zeros(sum(sizes), np.uint8)
        if library().nx_swap(byref(self._own), sent.ctypes.data, out_at, found.ctypes.data, in_at):
            raise self.gone()
        return [found[begin:end] for begin, end in pairwise(in_at)]

    def _wake(self) -> None:
        for end in self._data:
            if end is not None:
                with contextlib.suppress(OSError):  # it may have ended first
                    end.shutdown(socket.SHUT_RDWR)

    def beat(self) -> None:
        self._signs.beat()

    def beats(self) -> Mapping[int, int | None]:
        return self._signs.beats()

    def close(self) -> None:
        for end in self._data:
            if end is not None:
                end.close()
        self._signs.close()
