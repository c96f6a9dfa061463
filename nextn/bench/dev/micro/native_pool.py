"""The native kernels' threads, memory like that of their weights, and a call with little overhead."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nextn.bench.dev.micro.arithmetic import NATIVE
from nextn.ops.cpu.library import NoLibrary, library
from nextn.ops.cpu.weights import in_large_pages


class NativePool:
    """Threads for single kernels, at this level or the best. `handle` is valid as long as this object lives.
    Raises NoLibrary."""

    def __init__(self, threads: int, level: str | None = None) -> None:
        self.library = library(level)
        self.handle: Any = self.library.nx_pool_new(threads)
        if not self.handle:
            raise MemoryError("no memory for a pool of threads")
        weakref.finalize(self, self.library.nx_pool_free, self.handle)
        self.threads = threads

    @cached_property
    def able(self) -> tuple[str, ...]:
        """The arithmetic that the kernels have, the level's own first."""
        return tuple(name for name in NATIVE if self.multiply(name, 1))

    def multiply(self, arithmetic: str, tasks: int) -> int:
        """Multiplies and adds, and nothing else. Returns the operations that were done; 0 where the kernels
        lack this arithmetic."""
        return int(self.library.nx_peak(self.handle, NATIVE.index(arithmetic), tasks))

    def read(self, data: Tensor) -> int:
        """Reads all of it and returns the sum of its bits as 64-bit words, or pairs of 32-bit words in the
        portable library."""
        return int(self.library.nx_read(self.handle, data.data_ptr(), data.nbytes))


def native_pool(threads: int, level: str | None = None) -> NativePool | None:
    """A pool; None if the kernels are not built."""
    try:
        return NativePool(threads, level)
    except NoLibrary:
        return None


class NativeCall:
    """A kernel with its arguments. kept: the tensors that the pointers point into, the result last."""

    __slots__ = ("arguments", "function", "kept")

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...], *kept: object) -> None:
        self.function, self.arguments, self.kept = function, arguments, kept

    def __call__(self) -> None:
        self.function(*self.arguments)


def large(size: int) -> Tensor:
    """[size] uint8, uninitialised; in large pages, as the native weights are, if there is a library."""
    with contextlib.suppress(NoLibrary):
        return in_large_pages(size)
    return torch.empty(size, dtype=torch.uint8)
