"""Functions that a side process imports and calls."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from nextn.server.protocol.errors import ApiError


def length(data: bytes, *more: object) -> tuple[int, tuple[object, ...]]:
    return len(data), more


def own(data: bytes) -> tuple[int, int]:
    """The process id and its niceness."""
    return os.getpid(), os.nice(0)


def text(data: bytes) -> str:
    return data.decode(errors="surrogatepass")


def wait(data: bytes, there: Path) -> None:
    """Waits for a file. Meanwhile it occupies the interpreter of the process that calls it."""
    while not there.exists():
        time.sleep(0.01)


def refuse(data: bytes) -> None:
    raise ApiError(404, "no such thing", "a_type", "a_param", "a_code", {"Retry-After": "1"})


def fail(data: bytes) -> None:
    raise KeyError("a bug")


def die(data: bytes) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
