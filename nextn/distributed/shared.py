"""Memory that all ranks of a machine map, and what they tell each other in it.

It is a file without a name: the system frees it when the last rank that has it open ends, however it ends.

    page 0      the meeting (NxMeeting of csrc/ranks.h); from byte BEATS on, a counter of each rank
    the rest    arrays that the ranks fill together (csrc/forward.h)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tempfile
from ctypes import CDLL, pointer
from multiprocessing.reduction import DupFd
from typing import Any

from nextn.config import usable_cores
from nextn.distributed.group import PeerGone
from nextn.ops.cpu.library import GATHER, Model, Ranks

HEADER = 4096  # MEETING_BYTES of csrc/ranks.h
BEATS = 1024
SPINS = 4000  # of a rank that waits, before it sleeps: about 50 us, as in csrc/pool.h
FEW_SPINS = 50  # where ranks share cores: another one needs this rank's


class Memory:
    """New, empty shared memory. As an argument of a process that is spawned, it is the same memory there."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.file = os.memfd_create("nextn")
            return
        with tempfile.TemporaryFile() as file:
            self.file = os.dup(file.fileno())

    def mapped(self, size: int) -> mmap.mmap:
        """The first `size` bytes. What nobody writes takes no room."""
        if os.fstat(self.file).st_size < size:
            os.ftruncate(self.file, size)
        return mmap.mmap(self.file, size)

    def close(self) -> None:
        os.close(self.file)

    def __getstate__(self) -> Any:
        return DupFd(self.file)

    def __setstate__(self, handle: Any) -> None:
        self.file = handle.detach()


def address(view: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class SharedRanks:
    """One rank of those that compute a step together on one machine.

    threads: of all of them. most_rows: of a step.
    """

    def __init__(self, rank: int, size: int, memory: Memory, threads: int, most_rows: int) -> None:
        self.rank, self.size, self.most_rows = rank, size, most_rows
        self._memory, self._header = memory, memory.mapped(HEADER)
        self._spins = SPINS if threads <= usable_cores() else FEW_SPINS
        self._arrays: mmap.mmap | None = None
        self._struct: Ranks | None = None
        self.reason = ""  # why no step will run any more

    def shared_by(self, model: Model, layers: int, kernels: CDLL) -> Any:
        """What the kernels' engine of this model needs to know of the ranks."""
        size = kernels.nx_shared_bytes(model, layers, self.most_rows)
        self._arrays = self._memory.mapped(size)
        at = address(self._arrays)
        self._struct = Ranks(self.rank, self.size, at, size, self.most_rows, self._spins, GATHER(), 0)
        return pointer(self._struct)

    @property
    def waited(self) -> float:
        """Seconds that this rank has waited for the others in all."""
        return 0.0 if self._struct is None else float(self._struct.waited) / 1e9

    def gone(self) -> PeerGone:
        return PeerGone(self.reason or "another rank of this engine has ended")

    def give_up(self, kernels: CDLL, reason: str) -> None:
        """Nobody waits any more: a rank is gone."""
        self.reason = self.reason or reason
        kernels.nx_break(address(self._header))

    def beat(self) -> None:
        at = BEATS + 8 * self.rank
        (count,) = struct.unpack_from("q", self._header, at)
        struct.pack_into("q", self._header, at, count + 1)

    def beats(self) -> tuple[int, ...]:
        return struct.unpack_from(f"{self.size}q", self._header, BEATS)
