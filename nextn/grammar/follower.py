"""Follows the texts of one constraint in its own process. This is the other end of `nextn.grammar.isolated`.

A question has the number of a text, how many of its tokens are still valid, and the tokens after these. The
answer says how many of the new tokens the grammar took, and which tokens may follow.
"""

from __future__ import annotations

import resource as process
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from nextn.constraint import CompiledGrammar, Grammar
from nextn.grammar.limits import Limits, resident, statm

if TYPE_CHECKING:
    import socket

# The first message, and an answer. Both are longer than the parent's report that the process has ended. That
# report comes on the same link and must not be taken for one of them.
PID = struct.Struct("<I28x")
# Tokens taken, ACCEPTING | FAILED, memory growth in bytes, CPU seconds, number of bytes that follow.
ANSWER = struct.Struct("<IBqdI7x")
QUESTION = struct.Struct("<IIi")  # text, valid tokens, new tokens; GONE: the text has ended
GONE = -1
ACCEPTING, FAILED = 1, 2  # FAILED: the reason follows; otherwise the mask, one bit per token


def follow(link: socket.socket, asked: BinaryIO, compiled: CompiledGrammar, limits: Limits) -> NoReturn:
    """Answers questions until the process is killed, or its memory grows by more than one constraint may
    use."""
    data = statm(5)
    if data:
        process.setrlimit(process.RLIMIT_DATA, (data + limits.one, data + limits.one))
    texts: dict[int, _Text] = {}
    most = resident()
    while head := asked.read(QUESTION.size):
        number, stay, count = QUESTION.unpack(head)
        if count == GONE:
            texts.pop(number, None)
            continue
        tokens = struct.unpack(f"<{count}I", asked.read(4 * count))
        if number not in texts:
            texts[number] = _Text(compiled.begin())
        began = time.thread_time()
        taken, accepting, bits, failure = texts[number].go(stay, tokens)
        took = time.thread_time() - began
        state = ACCEPTING * accepting + FAILED * (failure is not None)
        rest = bits if failure is None else failure.encode()
        growth, most = max(0, resident() - most), max(most, resident())
        link.sendall(ANSWER.pack(taken, state, growth, took, len(rest)) + rest)
    raise SystemExit


class _Text:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.count = grammar, 0

    def go(self, stay: int, tokens: Sequence[int]) -> tuple[int, bool, bytes, str | None]:
        """Returns (tokens taken, whether the text may end there, mask as bits, error or None)."""
        import numpy as np  # loaded with the library

        try:
            assert stay <= self.count, "a question about a text that began elsewhere"
            if self.count > stay:
                self.grammar.rollback(self.count - stay)
            taken = self.grammar.advance(tokens) if tokens else 0
            self.count = stay + taken
            bits = np.packbits(self.grammar.mask(), bitorder="little").tobytes()
            return taken, self.grammar.accepting, bits, self.grammar.failure
        except MemoryError:
            raise
        except BaseException as e:  # Rust's panics are not Exceptions; other texts continue
            return 0, False, b"", f"the grammar's library failed: {type(e).__name__}: {e}"
