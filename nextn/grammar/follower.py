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
from nextn.grammar.limits import SLOW_MASK, SLOW_MASKS, Limits, resident, statm, too_slow_masks

if TYPE_CHECKING:
    import socket

PID = struct.Struct("<I")  # what comes first
QUESTION = struct.Struct("<IIi")  # text, tokens that stay, tokens to come; GONE: the text has ended
ANSWER = struct.Struct("<IBqI")  # tokens taken, ACCEPTING | FAILED, bytes of growth, bytes that follow
GONE = -1
ACCEPTING, FAILED = 1, 2  # FAILED: what follows is the reason; else the mask, a bit for each token


def follow(link: socket.socket, asked: BinaryIO, compiled: CompiledGrammar, limits: Limits) -> NoReturn:
    """Answers until the process is killed, or grows by more than one constraint may."""
    unlimited = process.RLIM_INFINITY
    process.setrlimit(process.RLIMIT_CPU, (unlimited, unlimited))  # who asks has a clock
    data = statm(5)
    if data:
        process.setrlimit(process.RLIMIT_DATA, (data + limits.one, data + limits.one))
    texts: dict[int, _Text] = {}
    slow, before = 0.0, resident()
    while head := asked.read(QUESTION.size):
        number, stay, count = QUESTION.unpack(head)
        if count == GONE:
            texts.pop(number, None)
            continue
        tokens = struct.unpack(f"<{count}I", asked.read(4 * count))
        text = texts.setdefault(number, _Text(compiled.begin()))
        began = time.thread_time()
        taken, bits, failure = text.go(stay, tokens)
        took = time.thread_time() - began
        slow += took * (took > SLOW_MASK)
        if slow > SLOW_MASKS:
            failure = too_slow_masks()
        state = ACCEPTING * (failure is None and text.grammar.accepting) + FAILED * (failure is not None)
        rest = bits if failure is None else failure.encode()
        now = resident()
        link.sendall(ANSWER.pack(taken, state, now - before, len(rest)) + rest)
        before = now
    raise SystemExit


class _Text:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.count = grammar, 0

    def go(self, stay: int, tokens: Sequence[int]) -> tuple[int, bytes, str | None]:
        if self.count > stay:
            self.grammar.rollback(self.count - stay)
        taken = self.grammar.advance(tokens) if tokens else 0
        self.count = stay + taken
        import numpy as np  # which the process has by now

        mask = self.grammar.mask()
        return taken, np.packbits(mask, bitorder="little").tobytes(), self.grammar.failure
