"""A separate process for calls that hold the interpreter's lock for a long time. In the server process they
would delay all requests, even from a thread. It runs at a low priority, one call after the other.

It starts with the first call. After some idle time it ends, which frees all memory that calls took.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from nextn.server.process.memory import malloc_trim
from nextn.server.protocol.errors import ApiError, unavailable

NICE = 10
IDLE_SECONDS = 30.0
CALL_SECONDS = 60.0  # maximum time of one call, even on a busy machine
# Like multiprocessing's spawn: the new process can import whatever this process can.
RUN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from nextn.server.process.side_process import serve; serve(int(sys.argv[2]), float(sys.argv[3]))"
)
Result = TypeVar("Result")


class SideProcess:
    """Starts the process if necessary, and makes calls in it. idle: seconds without a call after which the
    process ends."""

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.idle = idle
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="side-process")  # calls wait for it in turn
        # Only the thread uses these:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection
        self._end: weakref.finalize[Any, SideProcess] | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, or None while there is no process."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    async def call(self, function: Callable[..., Result], data: bytes | bytearray, *more: object) -> Result:
        """Calls `function(data, *more)` in the process and returns the result. Everything except `data` is
        pickled. Raises ApiError if the function does, or if the process ends or takes longer than
        CALL_SECONDS; RuntimeError for other exceptions."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._call, function, data, more)

    def _call(
        self, function: Callable[..., Result], data: bytes | bytearray, more: tuple[object, ...]
    ) -> Result:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        limit = threading.Timer(CALL_SECONDS, self._process.kill)
        limit.start()
        try:
            self._link.send((function, more))
            self._link.send_bytes(data)
            result = self._link.recv()
        except (EOFError, OSError) as e:
            if self._process.wait() == 0:  # it had just ended because it was idle
                return self._call(function, data, more)
            raise unavailable("the process that reads large bodies ended; try again", "body_not_read") from e
        finally:
            limit.cancel()
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def _start(self) -> None:
        self._link, theirs = multiprocessing.Pipe()
        with theirs:
            given = [json.dumps(sys.path), str(theirs.fileno()), str(self.idle)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", RUN, *given], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        if self._end is not None:
            self._end.detach()  # the earlier process has ended
        self._end = weakref.finalize(self, end, self._process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def serve(descriptor: int, idle: float) -> None:
    """The process's main function. It ends after `idle` seconds without a call, or if the server's end of the
    link is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these signals are for the server
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    link, trim = Connection(descriptor), malloc_trim()
    while link.poll(idle):
        try:
            function, more = link.recv()
            result = outcome(function, link.recv_bytes(), more)
            link.send(result)
        except (EOFError, OSError):
            return
        del result
        gc.collect()
        if trim is not None:
            trim(0)


def outcome(function: Callable[..., Any], data: bytes, more: tuple[object, ...]) -> Any:
    try:
        return function(data, *more)
    except ApiError as e:
        return e
    except Exception:
        return RuntimeError(traceback.format_exc())
