"""Messages between ranks: pickled plain data, and nothing else is read back.

Reading a pickle may call any function. These messages come over a network, so everyone who reaches the port
could send one. Therefore `loads` creates only objects of the classes that ranks exchange."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import sys
import time
from collections.abc import Iterable
from functools import cache
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

# Modules whose classes are plain data.
DATA = (
    "nextn.constraint", "nextn.cutoff", "nextn.distributed.wire", "nextn.draft", "nextn.engine.executor",
    "nextn.engine.group_messages", "nextn.engine.page_data", "nextn.expert_load", "nextn.request",
    "nextn.scheduler.plan", "nextn.speculative.draft_state", "nextn.speculative.ngram",
    "nextn.speculative.state", "nextn.speculative.work", "nextn.waits",
)  # fmt: skip
# Functions that restore compiled grammars (their __reduce__), and plain types.
ALSO = {
    "nextn.grammar.after": ("CompiledAfter",),
    "nextn.grammar.base": ("Vocabulary", "compiled_again"),
    "nextn.grammar.held": ("_held_again",),
    "nextn.grammar.limits": ("Limits",),
    "nextn.grammar.llguidance_backend": ("LLGuidance",),
    "nextn.grammar.xgrammar_backend": ("XGrammar",),
    "array": ("array", "_array_reconstructor"),
    "pathlib": ("PosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),  # Python 3.13
    "builtins": ("bytearray", "frozenset", "range", "set", "slice", "RuntimeError", "ValueError"),
}


GONE = (EOFError, OSError)  # errors of a link whose other end is closed


class Loaded(NamedTuple):
    """All ranks have loaded the model. From now on, none should be silent for long."""


class Ended(NamedTuple):
    """Rank 0's last message to the ranks of other machines: do not join again. error: why it cannot continue;
    "" if it ended normally."""

    error: str = ""


def dumps(message: object) -> bytes:
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def loads(data: bytes) -> Any:
    """Raises pickle.UnpicklingError for objects that ranks do not exchange."""
    return _Unpickler(io.BytesIO(data)).load()


def send(link: Connection, message: object) -> None:
    link.send_bytes(dumps(message))


def receive(link: Connection) -> Any:
    """Raises EOFError or OSError if the other end is closed."""
    return loads(link.recv_bytes())


def send_last(links: Iterable[Connection], message: object, seconds: float) -> None:
    """Sends a last message to all, and waits up to `seconds` until they have read it and closed their ends.
    Otherwise some might only see that others have ended. Messages from them are dropped."""
    left = set[Connection]()
    for link in links:
        with contextlib.suppress(*GONE):
            send(link, message)
            left.add(link)
    until = time.monotonic() + seconds
    while left and (rest := until - time.monotonic()) > 0:
        for link in left.intersection(connection.wait(left, rest)):
            try:
                link.recv_bytes()
            except GONE:
                left.remove(link)


def cut(link: Connection | socket.socket) -> None:
    """Closes a link so that readers at both ends see its end."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(link.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _found(module, name)


@cache
def _found(module: str, name: str) -> Any:
    if "." not in name and (module in DATA or name in ALSO.get(module, ())):
        __import__(module)
        found = getattr(sys.modules[module], name)
        if module in ALSO or (isinstance(found, type) and found.__module__ == module):
            return found
    raise pickle.UnpicklingError(f"{module}.{name} is nothing that ranks exchange")
