"""The limits of a constraint: time and memory to compile it, memory while texts follow it, and stack."""

from __future__ import annotations

import contextlib
import os
import resource as process
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from nextn.config import EngineConfig

MIB = 2**20
SHARE = 8  # one constraint may use 1/SHARE of the memory for all
PEAK = 4  # and PEAK times as much while it is compiled
# Too deep recursion in a library ends the process with a signal. So a trial has half of the stack of the real
# compilation, and follows tokens on an eighth of the usual stack of a thread.
TRIAL_STACK, COMPILE_STACK, WALK_STACK = 8 * MIB, 16 * MIB, MIB

# CPU seconds. SLOWEST_MASK: for one mask in a trial, because no request gets a token meanwhile. Ordinary
# constraints take at most 2 ms with a vocabulary of 128,000 tokens. SLOW_MASK, SLOW_MASKS: in use, masks
# slower than the first may take up to the second in total, over all constraints.
SLOWEST_MASK, SLOW_MASK, SLOW_MASKS = 0.1, 0.02, 1.0
# Seconds to wait for a process that follows a client's grammar (`isolated`); enough on a busy machine.
LONGEST_MASK = 0.5
# The patience with slow and endless masks shrinks by the time that all requests recently waited for them,
# down to LEAST_PATIENCE seconds. That wait decays by FORGIVEN seconds per second. While it exceeds
# LONGEST_MASK, no new constraint that may never end is accepted.
LEAST_PATIENCE, FORGIVEN = 0.05, 0.02

PAGE = os.sysconf("SC_PAGESIZE")
STATM = "/proc/self/statm"  # Linux: sizes in pages. Field 1: resident, 2: shared, 5: data and stacks


class Busy(ValueError):
    """Too many constraints wait or are in use. The request is not at fault and may try again."""


@dataclass(frozen=True)
class Limits:
    """seconds: for one compilation. memory: bytes for all compiled constraints. alone: False if several ranks
    follow the same texts. Then only limits that all ranks reach at the same token may end a text: no time
    limits, and no limits on a process's memory."""

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
            f"it takes more than {self.one / MIB:g} MiB, 1/{SHARE} of --grammar-memory-mb "
            f"({self.memory // MIB})"
        )

    @property
    def too_large_to_compile(self) -> str:
        return (
            f"it takes more than {self.peak / MIB:g} MiB to compile, {PEAK}/{SHARE} of --grammar-memory-mb "
            f"({self.memory // MIB})"
        )


def statm(field: int) -> int:
    """Returns a field of STATM in bytes; 0 if the system does not have it."""
    with contextlib.suppress(OSError), open(STATM, "rb") as file:
        return int(file.read().split()[field]) * PAGE
    return 0


class Resident:
    """Returns this process's own (unshared) resident memory in bytes, with one short read. 0 if the system
    does not tell."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._open()
        os.register_at_fork(after_in_child=self._open)  # an open file describes its first process

    def _open(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        with contextlib.suppress(OSError):
            self._file = os.open(STATM, os.O_RDONLY)

    def __call__(self) -> int:
        return self.grown(b"0 0 0", self.read())

    def read(self) -> bytes:
        """Takes a reading for `grown`. If two readings are equal, nothing has changed."""
        return b"0 0 0" if self._file is None else os.pread(self._file, 128, 0)

    @staticmethod
    def grown(before: bytes, after: bytes) -> int:
        """Growth in bytes between two readings."""
        (_, old, old_shared), (_, new, new_shared) = (map(int, each.split()[:3]) for each in (before, after))
        return (new - new_shared - old + old_shared) * PAGE


resident = Resident()


@contextlib.contextmanager
def stack(size: int) -> Iterator[None]:
    """Limits the stack of the main thread, in bytes. A process that exceeds the limit is killed."""
    soft, hard = process.getrlimit(process.RLIMIT_STACK)
    process.setrlimit(process.RLIMIT_STACK, (size if hard < 0 else min(size, hard), hard))
    try:
        yield
    finally:
        process.setrlimit(process.RLIMIT_STACK, (soft, hard))


@contextlib.contextmanager
def stack_of_threads(size: int) -> Iterator[None]:
    """Limits the stack of threads that start in this context, in bytes."""
    before = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(before)
