"""Memory that several processes of a machine share.

It is a file without a name. The system frees it when the last process that has it open ends, in any way.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from multiprocessing.reduction import DupFd
from typing import Any

HEADER = 4096  # MEETING_BYTES of csrc/ranks.h
GRAIN = mmap.ALLOCATIONGRANULARITY


class Numbers:
    """Numbers of 64 bits, from byte `at` of shared memory on. Each is written by one process only."""

    def __init__(self, page: mmap.mmap, at: int) -> None:
        self._page, self._at = page, at

    def __getitem__(self, i: int) -> int:
        (found,) = struct.unpack_from("q", self._page, self._at + 8 * i)
        return int(found)

    def __setitem__(self, i: int, number: int) -> None:
        struct.pack_into("q", self._page, self._at + 8 * i, number)

    def first(self, n: int) -> tuple[int, ...]:
        return struct.unpack_from(f"{n}q", self._page, self._at)


class Memory:
    """file: its descriptor; None: new, empty memory. An argument of a spawned process refers to the same
    memory there."""

    def __init__(self, file: int | None = None) -> None:
        self.file = _unnamed_file() if file is None else file
        if file is None:  # by one process only: a second one would cut off what the first has mapped
            os.ftruncate(self.file, HEADER)

    def mapped(self, size: int, at: int = 0) -> mmap.mmap:
        """Maps `size` bytes from `at` on; `at` is a multiple of GRAIN. Pages that nobody writes take no
        memory. If several ranks extend the memory, they must do it with the same `at` and `size`."""
        if os.fstat(self.file).st_size < at + size:
            os.ftruncate(self.file, at + size)
        return mmap.mmap(self.file, size, offset=at)

    def close(self) -> None:
        os.close(self.file)

    def __getstate__(self) -> Any:
        return DupFd(self.file)

    def __setstate__(self, handle: Any) -> None:
        self.file = handle.detach()


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("nextn")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
