"""Constraints whose texts are followed in a separate process.

A grammar that a client wrote can make a library compute forever over a single token, whatever limits the
library has. So each such constraint has its own process, which is killed if an answer takes too long. Then
the texts of this constraint end, and no others. A question and its answer take 0.1 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nextn.constraint import Grammar
from nextn.grammar.backends import backend_class
from nextn.grammar.base import Vocabulary, compiled_again
from nextn.grammar.follower import ACCEPTING, ANSWER, FAILED, GONE, PID, QUESTION
from nextn.grammar.held import CachedConstraint, Memory
from nextn.grammar.limits import LONGEST_MASK, MIB, SLOW_MASK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = ("ebnf", "lark")  # here the client writes a grammar; for other kinds the library makes it
AT_ONCE = 256  # tokens in one question; a text that is resumed has thousands
PROCESS = 6 * MIB  # memory of one process in bytes, without what it shares with others


class _Answer(NamedTuple):
    taken: int
    accepting: bool
    failure: str | None
    bits: bytes


class IsolatedGrammar:
    """A `CompiledGrammar` in another process. held: a weak reference to the object that counts its memory and
    time."""

    def __init__(
        self, link: socket.socket, backend: str, vocabulary: Vocabulary, kind: str, prepared: str,
        memory: Memory,
    ) -> None:  # fmt: skip
        """link: to a child of `worker`. prepared: the text that passed the trial. Raises ValueError if the
        child does not compile it in time."""
        self.vocabulary = vocabulary
        self.failure: str | None = None
        self.held: Callable[[], CachedConstraint | None] = lambda: None
        self._pid = os.getpid()
        self._made = backend, vocabulary, kind, prepared
        self._link, self._memory, self._numbers = link, memory, itertools.count()
        weakref.finalize(self, link.close)  # closing the link ends the process
        link.settimeout(memory.limits.seconds)
        try:
            link.sendall(json.dumps({"follow": True, "kind": kind, "text": prepared}).encode() + b"\n")
            (self.pid,) = PID.unpack(self._read(PID.size))
        except OSError:
            link.close()
            raise ValueError(f"{kind}: {memory.limits.too_slow}") from None

    def __reduce__(self) -> tuple[object, ...]:
        """A copy in another process follows its texts there, without this protection."""
        backend, *rest = self._made
        return compiled_again, (backend_class(backend), *rest)

    def begin(self) -> Grammar:
        return _Text(self, next(self._numbers))

    def ask(self, number: int, stay: int, tokens: Sequence[int]) -> _Answer:
        if self.failure is None:
            began, patience = time.monotonic(), self._memory.patience(LONGEST_MASK)
            self._link.settimeout(patience)
            try:
                head = QUESTION.pack(number, stay, len(tokens))
                self._link.sendall(head + struct.pack(f"<{len(tokens)}I", *tokens))
                taken, state, growth, took, length = ANSWER.unpack(self._read(ANSWER.size))
                rest = self._read(length)
            except TimeoutError:
                self._fail(f"computing the allowed tokens takes more than {1000 * patience:.0f} ms")
                self._memory.stalled(time.monotonic() - began)
            except OSError:
                self._fail("the process of this grammar ended, perhaps because it used too much memory")
            except BaseException:  # e.g. Ctrl-C: a later question would get this answer
                self._fail("it was interrupted")
                raise
            else:
                held = self.held()
                if held is not None and growth:
                    held.grow(growth)
                if held is not None and took > SLOW_MASK:
                    held.delay(took)
                failure = rest.decode() if state & FAILED else None
                return _Answer(taken, bool(state & ACCEPTING), failure, b"" if failure else rest)
        return _Answer(0, False, self.failure, b"")

    def forget(self, number: int) -> None:
        if os.getpid() != self._pid:  # this is a copy, made by a fork
            return
        with contextlib.suppress(OSError):  # the process has ended
            self._link.sendall(QUESTION.pack(number, 0, GONE))

    def _read(self, count: int) -> bytes:
        """Raises OSError if the other end is closed, and TimeoutError."""
        parts = bytearray()
        while len(parts) < count:
            part = self._link.recv(count - len(parts))
            if not part:
                raise ConnectionError
            parts += part
        return bytes(parts)

    def _fail(self, why: str) -> None:
        self.failure = why
        self._link.close()


class _Text:
    """A `Grammar` that asks the process. It keeps the last answer, until a rollback."""

    def __init__(self, isolated: IsolatedGrammar, number: int) -> None:
        self.isolated, self.number = isolated, number
        self._count = 0
        self._known: _Answer | None = None
        weakref.finalize(self, isolated.forget, number)

    def _state(self) -> _Answer:
        if self._known is None:
            self._known = self.isolated.ask(self.number, self._count, ())
        return self._known

    def mask(self) -> NDArray[np.bool_]:
        import numpy as np

        state = self._state()
        if state.failure is not None:
            return np.zeros(self.isolated.vocabulary.size, np.bool_)
        bits = np.frombuffer(state.bits, np.uint8)
        return np.unpackbits(bits, count=self.isolated.vocabulary.size, bitorder="little").view(np.bool_)

    @property
    def accepting(self) -> bool:
        return self._state().accepting

    @property
    def failure(self) -> str | None:
        known = self._known
        return self.isolated.failure or (None if known is None else known.failure)

    def advance(self, tokens: Sequence[int]) -> int:
        took = 0
        for at in range(0, len(tokens), AT_ONCE):
            part = tokens[at : at + AT_ONCE]
            self._known = self.isolated.ask(self.number, self._count, part)
            self._count += self._known.taken
            took += self._known.taken
            if self._known.taken < len(part):
                break
        return took

    def rollback(self, count: int) -> None:
        self._count -= count
        self._known = None
