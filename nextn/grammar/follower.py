"""Follows the texts of one constraint in a process of its own, for `nextn.grammar.apart`: the other end.

A question is the number of a text, how many of its tokens stay, and the tokens that come after these. The
answer is how many of them may follow, and which tokens may follow then.
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

# What comes first, and an answer. Both are longer than the parent's report that the process has ended, which
# comes on the same link and must not be taken for one of them.
PID = struct.Struct("<I28x")
# Tokens taken, ACCEPTING | FAILED, bytes of growth, CPU seconds, bytes that follow.
ANSWER = struct.Struct("<IBqdI7x")
QUESTION = struct.Struct("<IIi")  # text, tokens that stay, tokens to come; GONE: the text has ended
GONE = -1
ACCEPTING, FAILED = 1, 2  # FAILED: what follows is the reason; else the mask, a bit for each token


def follow(link: socket.socket, asked: BinaryIO, compiled: CompiledGrammar, limits: Limits) -> NoReturn:
    """Answers until the process is killed, or grows by more than one constraint may."""
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
        """Returns the tokens taken, whether the text may end there, what may follow, and why nothing may."""
        import numpy as np  # which the process has by now

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
        except BaseException as e:  # Rust's panics are no Exception; other texts go on
            return 0, False, b"", f"the grammar's library failed: {type(e).__name__}: {e}"
