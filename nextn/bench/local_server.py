"""A `nextn serve` process on a free port, for a measurement.

with LocalServer("with MTP", ["--speculative-num-steps", "2"], Path("out/server.log")) as server:
    server.wait_ready()
    ... server.url ...
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from nextn.bench import tied
from nextn.bench.errors import BenchError
from nextn.bench.logged_process import LoggedProcess
from nextn.server_config import API_KEY_VARIABLE

READY = re.compile(r"^nextn is ready on (http://\S+) \(model (.+), ", re.MULTILINE)
START_SECONDS = 300.0


class LocalServer:
    """A server process; the constructor starts it. `options`: options of `nextn serve`. `log`: the file that
    gets its output. `tree`: the source tree that `nextn` is imported from, if it is not this process's.

    The server stays in this process's group, so that Ctrl-C in a terminal reaches it too. On Linux it ends
    with the thread that started it, so that no server is left if that thread is killed.
    """

    def __init__(self, name: str, options: Sequence[str], log: Path, tree: Path | None = None) -> None:
        self.name, self.log = name, log
        self.url = self.model = ""
        serve = [sys.executable, "-m", "nextn", "serve", "--port", "0", *options]
        # The environment may have an API key for another server. This one must not require it: the
        # measurement sends no key.
        environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
        if tree is not None:
            environment["PYTHONPATH"] = str(tree.resolve())
        self._process = LoggedProcess(
            [sys.executable, tied.__file__, str(os.getpid()), *serve], log, environment
        )

    def wait_ready(self) -> None:
        """Waits until the server is ready, and sets `url` and `model`. Raises BenchError if the server ends
        or is not ready within START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = self._process.poll()
            if match := READY.search(self.log.read_text(errors="replace")):
                self.url, self.model = match[1], match[2]
                return
            if ended is not None:
                raise BenchError(f"the server {self.name} ended while starting (exit code {ended})")
            if time.monotonic() > deadline:
                raise BenchError(f"the server {self.name} was not ready after {START_SECONDS:.0f} s")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def last_lines(self) -> list[str]:
        return self._process.last_lines()

    def stop(self) -> None:
        self._process.stop()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Within this context SIGTERM and a closed terminal (SIGHUP) end the run like Ctrl-C does, so that no
    server is left.

    A shell starts a background job with Ctrl-C ignored. Within this context Ctrl-C is not ignored, because
    all three signals would be."""

    def interrupt(number: int, frame: object) -> None:
        # Not KeyboardInterrupt: asyncio has its own handler for Ctrl-C, which cancels the tasks in order.
        signal.raise_signal(signal.SIGINT)

    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        handlers[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
