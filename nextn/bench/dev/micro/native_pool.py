"""A pool of threads for the native kernels, calls with little overhead, and memory in large pages."""

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
    """Threads that run single kernels, at `level` or at the best one. `handle` is valid as long as this
    object exists. Raises NoLibrary if the kernels are not built, and MemoryError."""

    def __init__(self, threads: int, level: str | None = None) -> None:
        self.library = library(level)
        self.handle: Any = self.library.nx_pool_new(threads)
        if not self.handle:
            raise MemoryError("no memory for a pool of threads")
        weakref.finalize(self, self.library.nx_pool_free, self.handle)
        self.threads = threads

    @cached_property
    def able(self) -> tuple[str, ...]:
        """Names of the arithmetic that the kernels have, the level's preferred one first."""
        return tuple(name for name in NATIVE if self.multiply(name, 1))

    def multiply(self, arithmetic: str, tasks: int) -> int:
        """Runs multiply-adds without other work. Returns the number of operations; 0 if the kernels lack this
        arithmetic."""
        return int(self.library.nx_peak(self.handle, NATIVE.index(arithmetic), tasks))

    def read(self, data: Tensor) -> int:
        """Reads all of `data` and returns the sum of its 64-bit words, or in the portable library of pairs of
        32-bit words."""
        return int(self.library.nx_read(self.handle, data.data_ptr(), data.nbytes))


def native_pool(threads: int, level: str | None = None) -> NativePool | None:
    """Makes a pool; returns None if the kernels are not built."""
    try:
        return NativePool(threads, level)
    except NoLibrary:
        return None


class NativeCall:
    """A kernel with its arguments. kept: the objects that the pointers point into, the result last."""

    __slots__ = ("arguments", "function", "kept")

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...], *kept: object) -> None:
        self.function, self.arguments, self.kept = function, arguments, kept

    def __call__(self) -> None:
        self.function(*self.arguments)


def large(size: int) -> Tensor:
    """[size] uint8, uninitialised; in large pages, like the native weights, if the library is built."""
    with contextlib.suppress(NoLibrary):
        return in_large_pages(size)
    return torch.empty(size, dtype=torch.uint8)
