"""The limits of a constraint: time and memory to compile it, memory while texts follow it, stack."""

from __future__ import annotations

import contextlib
import os
import resource as process
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from nextn.config import EngineConfig

MIB = 2**20
SHARE = 8  # one constraint may take this part of the memory of all
PEAK = 4  # and this many times as much for a moment, while it is compiled
# Recursion in a library ends with a signal. A trial has half of the stack that the real compilation has, and
# walks on an eighth of what the threads of a process usually have.
TRIAL_STACK, COMPILE_STACK, WALK_STACK = 8 * MIB, 16 * MIB, MIB

# Seconds of the processor for one mask in a trial: nobody gets a token meanwhile. Masks of sound constraints
# take 2 ms at most, with a vocabulary of 128,000 tokens. In use, those that take longer than the second
# number may add up to the third, of all constraints.
SLOWEST_MASK, SLOW_MASK, SLOW_MASKS = 0.1, 0.02, 1.0
# Seconds to wait for a process that follows a client's grammar (`apart`), on a busy machine too.
LONGEST_MASK = 0.5
# Patience with slow and endless masks shrinks by what everybody waited for them lately, to the first number.
# This share of all time is forgiven. Beyond LONGEST_MASK nothing new that may be endless is taken.
LEAST_PATIENCE, FORGIVEN = 0.05, 0.02

PAGE = os.sysconf("SC_PAGESIZE")
STATM = "/proc/self/statm"  # Linux: sizes in pages; resident is field 1, shared 2, data and stacks 5


class Busy(ValueError):
    """Too many constraints wait or are in use. It is not the fault of the request, which may try again."""


@dataclass(frozen=True)
class Limits:
    """seconds: for one compilation. memory: bytes for all compiled constraints together. alone: False where
    ranks follow the same texts. Only what all of them find alike may end one there, so no clock, and no count
    of a process's memory."""

    seconds: float
    memory: int
    alone: bool = True

    @classmethod
    def of(cls, config: EngineConfig) -> Limits:
        return cls(config.grammar_compile_timeout, config.grammar_memory_mb * MIB, config.tp_size == 1)

    @property
    def one(self) -> int:
        return self.memory // SHARE

    @property
    def peak(self) -> int:
        return PEAK * self.one

    @property
    def too_slow(self) -> str:
        return f"it takes more than {self.seconds:g} s to compile (--grammar-compile-timeout)"

    @property
    def too_large(self) -> str:
        return (
            f"it takes more than {self.one / MIB:g} MiB, a {SHARE}th of --grammar-memory-mb "
            f"({self.memory // MIB})"
        )

    @property
    def too_large_to_compile(self) -> str:
        return (
            f"it takes more than {self.peak / MIB:g} MiB to compile, {PEAK}/{SHARE} of --grammar-memory-mb "
            f"({self.memory // MIB})"
        )


def statm(field: int) -> int:
    """Reads the memory of a process; 0 if the system does not say."""
    with contextlib.suppress(OSError), open(STATM, "rb") as file:
        return int(file.read().split()[field]) * PAGE
    return 0


class Resident:
    """Memory of this process in bytes, by one short read; 0 if the system does not say."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._open()
        os.register_at_fork(after_in_child=self._open)  # an open file goes on telling of the process it was

    def _open(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        with contextlib.suppress(OSError):
            self._file = os.open(STATM, os.O_RDONLY)

    def __call__(self) -> int:
        return self.grown(b"0 0 0", self.read())

    def read(self) -> bytes:
        """Takes a reading for `grown`. Two equal readings: nothing is new."""
        return b"0 0 0" if self._file is None else os.pread(self._file, 128, 0)

    @staticmethod
    def grown(before: bytes, after: bytes) -> int:
        """Bytes between two readings."""
        (_, old, old_shared), (_, new, new_shared) = (map(int, each.split()[:3]) for each in (before, after))
        return (new - new_shared - old + old_shared) * PAGE


resident = Resident()


@contextlib.contextmanager
def stack(size: int) -> Iterator[None]:
    """Limits the stack of the main thread, in bytes; a process that exceeds it ends."""
    soft, hard = process.getrlimit(process.RLIMIT_STACK)
    process.setrlimit(process.RLIMIT_STACK, (size if hard < 0 else min(size, hard), hard))
    try:
        yield
    finally:
        process.setrlimit(process.RLIMIT_STACK, (soft, hard))


@contextlib.contextmanager
def stack_of_threads(size: int) -> Iterator[None]:
    """Limits the stack of threads that are started in this context, in bytes."""
    before = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(before)
