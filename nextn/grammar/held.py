"""Compiled constraints, the memory that they use, and the limits on it.

A library works lazily: what it computes about a constraint while texts follow it stays in memory, for all
texts of that constraint. So each constraint is measured while it is used, and all together have a limit.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nextn.constraint import CompiledGrammar, Constraint, Grammar
from nextn.grammar.limits import (
    FORGIVEN,
    LEAST_PATIENCE,
    LONGEST_MASK,
    MIB,
    SLOW_MASK,
    SLOW_MASKS,
    Busy,
    Limits,
    resident,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST = 25600  # bytes counted for a constraint too small to measure; from a test with 27,000 of them


class CachedConstraint:
    """One compiled constraint, a `CompiledGrammar`. failure: set if it exceeded a limit; then none of its
    texts can continue."""

    def __init__(
        self, constraint: Constraint, compiled: CompiledGrammar, size: int, memory: Memory, process: int = 0
    ) -> None:
        """process: bytes of the process that follows its texts, 0 if there is none. They are added to
        `size`."""
        self.constraint, self.compiled, self.memory = constraint, compiled, memory
        self.bytes, self.process = size + process, process
        self.unseen = 0  # bytes of growth not yet reported to `memory`
        self.seconds = 0.0  # CPU seconds of slow masks so far
        self.failure: str | None = None
        self.users: weakref.WeakSet[_Watched] = weakref.WeakSet()

    def __reduce__(self) -> tuple[object, ...]:
        """A copy in another process counts its memory and time there in the same way."""
        return _held_again, (self.constraint, self.compiled, self.bytes, self.memory.limits)

    def begin(self) -> Grammar:
        grammar = _Watched(self.compiled.begin(), self)
        self.users.add(grammar)
        return grammar

    def grow(self, size: int) -> None:
        self.unseen += size
        if self.unseen >= MIB:
            size, self.unseen = self.unseen, 0
            self.memory.grown(self, size)

    def __del__(self) -> None:
        self.memory.freed(self)

    def delay(self, seconds: float) -> None:
        self.seconds += seconds
        self.memory.stalled(seconds)
        tired = self.seconds > LEAST_PATIENCE and self.memory.patience(SLOW_MASKS) == LEAST_PATIENCE
        if tired and self.memory.limits.alone:
            self.failure = f"computing the allowed tokens took more than {1000 * SLOW_MASK:g} ms too often"


class _Watched:
    """A grammar in use. Measures its time and memory."""

    def __init__(self, grammar: Grammar, held: CachedConstraint) -> None:
        self.grammar, self.held = grammar, held

    def mask(self) -> NDArray[np.bool_]:
        found = self.grammar.mask() if self.held.process else self._measured()
        if self.held.failure is None:
            self.held.failure = self.grammar.failure
        if self.held.failure is not None:
            found[:] = False
        return found

    def _measured(self) -> NDArray[np.bool_]:
        before, began = resident.read(), time.thread_time()
        found = self.grammar.mask()
        seconds, after = time.thread_time() - began, resident.read()
        if after != before:
            self.held.grow(max(0, resident.grown(before, after)))
        if seconds > SLOW_MASK:
            self.held.delay(seconds)
        return found

    @property
    def accepting(self) -> bool:
        return self.held.failure is None and self.grammar.accepting

    @property
    def failure(self) -> str | None:
        return self.held.failure

    def advance(self, tokens: Sequence[int]) -> int:
        took = self.grammar.advance(tokens)
        if took < len(tokens) and self.held.failure is None:
            self.held.failure = self.grammar.failure
        return took

    def rollback(self, count: int) -> None:
        self.grammar.rollback(count)


def _held_again(
    constraint: Constraint, compiled: CompiledGrammar, size: int, limits: Limits
) -> CachedConstraint:
    memory = _MEMORIES.setdefault(limits, Memory(limits))
    return memory.get(constraint) or memory.taken(constraint, compiled, size)


class Memory:
    """All compiled constraints: those kept for later requests, the last used at the end, and those in use.
    Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.RLock()
        self._kept: dict[Constraint, CachedConstraint] = {}
        self._all: weakref.WeakSet[CachedConstraint] = weakref.WeakSet()
        self.bytes = 0  # of all in `_all`, and of some that are being freed
        self._stalls, self._stalled = 0.0, time.monotonic()  # seconds, and the time of the last stall

    def get(self, constraint: Constraint) -> CachedConstraint | None:
        with self._lock:
            held = self._kept.pop(constraint, None)
            if held is None or held.failure is not None:
                return None
            self._kept[constraint] = held
            return held

    def keep(
        self, constraint: Constraint, compiled: CompiledGrammar, size: int, process: int = 0
    ) -> CachedConstraint:
        """Keeps a constraint. size: bytes. process: see `CachedConstraint`. Raises ValueError if it is too
        large, Busy if there is no room."""
        size = max(size, LEAST) + 2 * len(constraint.text)
        if size > self.limits.one:
            raise ValueError(f"{constraint.kind}: {self.limits.too_large}")
        return self._held(CachedConstraint(constraint, compiled, size, self, process), refuse=True)

    def taken(self, constraint: Constraint, compiled: CompiledGrammar, size: int) -> CachedConstraint:
        """Keeps a constraint that another process has accepted. size: bytes, as counted there."""
        return self._held(CachedConstraint(constraint, compiled, size, self), refuse=False)

    def _held(self, held: CachedConstraint, refuse: bool) -> CachedConstraint:
        constraint = held.constraint
        with self._lock:
            self._make_room(held.bytes)
            self.bytes += held.bytes  # `freed` subtracts them in every case
            if refuse and self.bytes > self.limits.memory:
                raise Busy(
                    f"{constraint.kind}: the constraints in use take all of --grammar-memory-mb "
                    f"({self.limits.memory // MIB}); try again later"
                )
            self._all.add(held)
            self._kept[constraint] = held
        return held

    def stalled(self, seconds: float) -> None:
        """All requests waited this long for one constraint."""
        with self._lock:
            self._stalls, self._stalled = self._not_forgiven() + seconds, time.monotonic()

    def patience(self, seconds: float) -> float:
        """How long one constraint may delay all requests: `seconds`, or less after recent stalls."""
        return max(LEAST_PATIENCE, seconds - self._not_forgiven())

    def check_patience(self, kind: str) -> None:
        """Raises Busy if all requests waited too long lately to accept another constraint that may never
        end."""
        if self._not_forgiven() > LONGEST_MASK:
            raise Busy(f"{kind}: constraints of this kind took too much time recently; try again later")

    def _not_forgiven(self) -> float:
        return max(0.0, self._stalls - FORGIVEN * (time.monotonic() - self._stalled))

    def freed(self, held: CachedConstraint) -> None:
        with self._lock:
            self.bytes -= held.bytes

    def grown(self, held: CachedConstraint, size: int) -> None:
        with self._lock:
            held.bytes += size
            self.bytes += size
            if not self.limits.alone:
                return
            if held.bytes - held.process > self.limits.one:
                held.failure = f"while texts used it, {self.limits.too_large}"
            self._make_room(0)
            sound = [each for each in self._all if each.failure is None]
            if sum(each.bytes for each in sound) > self.limits.memory:  # the others end soon
                largest = max(sound, key=lambda each: each.bytes)
                largest.failure = (
                    "the constraints in use take more than --grammar-memory-mb "
                    f"({self.limits.memory // MIB}), and this one is the largest"
                )

    def _make_room(self, size: int) -> None:
        """Drops unused constraints, the least recently used first, and those that exceeded a limit."""
        if self.bytes + size <= self.limits.memory:
            return
        for constraint in list(self._kept):
            if self.bytes + size <= self.limits.memory:
                break
            if self._kept[constraint].failure is not None or not len(self._kept[constraint].users):
                del self._kept[constraint]


_MEMORIES: dict[Limits, Memory] = {}  # for constraints that came from another process
