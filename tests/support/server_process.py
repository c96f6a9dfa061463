"""`nextn serve` as a process, for tests.

with ServerProcess([...command...]) as server:
    httpx.get(server.url + "/health")
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx
from support.processes import children, command, session

SCRIPTED = str(Path(__file__).parent / "scripted_engine.py")
RUNNING, USED = "nextn:num_running_reqs", "nextn:num_used_tokens"
READY = re.compile(r"nextn is ready on (http://\S+) \(model (\S+), ")


class ServerProcess:
    """The process starts at once; `wait_ready` sets `url`. Its output is in `stdout` and `stderr`, line by
    line."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """prefix: words before Python's, for a program that runs it."""
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
            start_new_session=True,
        )  # fmt: skip
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._ready = threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr))
        ]
        for reader in self._readers:
            reader.start()
        self.url = self.model = ""

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                lines.append(line.rstrip("\n"))
                if match := READY.search(line):
                    self.url, self.model = match[1], match[2]
                    self._ready.set()
        self._ready.set()

    def wait_ready(self, timeout: float = 60) -> ServerProcess:
        if not self._ready.wait(timeout) or not self.url:
            self.kill()
            raise AssertionError("the server did not start:\n" + "\n".join(self.stdout + self.stderr))
        return self

    def wait(self, timeout: float = 20) -> int:
        """Returns the exit code, after all output has been read."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        return code

    def interrupt(self) -> None:
        """Like Ctrl-C: sends SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def engine_pid(self) -> int:
        pids = self.engine_pids()
        assert pids, "there is no engine process"
        return pids[0]

    def engine_pids(self) -> list[int]:
        """The engine processes: children of the server with multiprocessing's spawn on their command line.
        (An engine's own children have it too, until they run another program.) They are in the order of their
        ranks until one is restarted."""
        return [pid for pid in sorted(children(self.process.pid)) if b"spawn_main" in command(pid)]

    def tensor_ranks(self, engine: int) -> list[int]:
        """The ranks of an engine except the engine process itself, which is rank 0."""
        return [pid for pid in sorted(children(engine)) if b"tensor_rank" in command(pid)]

    def session(self) -> list[int]:
        """All processes of the server's session that still run."""
        return session(self.process.pid)

    def post(self, path: str, timeout: float = 60, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=timeout)

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if x[0] != "#")}

    def __enter__(self) -> ServerProcess:
        return self.wait_ready()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()


def scripted_python(folder: Path, *options: str) -> str:
    """The path of a Python, in `folder`, that runs the scripted engine in place of `-m nextn serve`, with
    these options and those that are given. For commands that start servers with `sys.executable`."""
    path = folder / "scripted-python"
    words = " ".join(options)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] && shift 3 && exec {sys.executable} {SCRIPTED} {words} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def until(true: object, seconds: float = 30) -> None:
    """Waits for a condition. Raises AssertionError if it is not true within `seconds`."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def idle(server: ServerProcess) -> bool:
    metrics = server.metrics()
    return metrics[RUNNING] == metrics[USED] == metrics["nextn:num_queue_reqs"] == 0


def in_background(*calls: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def check_ended(server: ServerProcess, code: int) -> None:
    assert server.wait() == code
    until(lambda: server.session() == [])
    assert not any("Traceback" in line for line in server.stderr), server.stderr
