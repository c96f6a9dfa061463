"""The server under test: a `nextn serve` that checks its bookkeeping after every step, and its state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx
from client import Address

from nextn.bench.local_server import LocalServer

COUNTS = ("num_requests_total", "num_aborted_requests_total", "num_failed_requests_total")
IDLE = ("num_running_reqs", "num_queue_reqs", "num_used_tokens")
ENGINE = b"spawn_main"  # in the command line of an engine's process
SETTLE_SECONDS = 60.0  # the server can take half of them to restart an engine that has died often


class Server:
    """A context manager: the server is ready when the context is entered, and is stopped when it ends."""

    def __init__(self, options: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.log = Path(self._folder.name) / "server.log"
        common = ["--check-integrity", "--max-engine-restarts", "1000", "--log-level", "warning"]
        self._server = LocalServer("under test", [*common, *options], self.log)

    def __enter__(self) -> Server:
        try:
            self._server.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        host, _, port = self._server.url.removeprefix("http://").rpartition(":")
        self.url, self.model = self._server.url, self._server.model
        self.address: Address = (host, int(port))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop()
        self._folder.cleanup()

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if x[0] != "#")}

    def healthy(self) -> bool:
        return httpx.get(self.url + "/readyz").status_code == 200

    def pids(self) -> list[int]:
        """Process ids: the server's first, then the engine's if there is one."""
        return [self._server.pid, *children(self._server.pid, ENGINE)]

    def megabytes(self) -> float:
        """Resident memory of both processes together, in MiB."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        """Number of open files and connections of the server."""
        return len(os.listdir(f"/proc/{self._server.pid}/fd"))

    def kill_engine(self) -> bool:
        """Kills the engine's process. Returns False if there is none."""
        engines = self.pids()[1:]
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        return bool(engines)

    async def settled(self) -> dict[str, float]:
        """Waits until no request runs and every request is counted, and returns the metrics. Raises
        AssertionError after SETTLE_SECONDS."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            metrics = await asyncio.to_thread(self.metrics)
            ended = sum(
                v for name, v in metrics.items() if name.startswith("nextn:num_finished_requests_total")
            )
            asked, aborted, failed = (metrics[f"nextn:{name}"] for name in COUNTS)
            idle = all(metrics[f"nextn:{name}"] == 0 for name in IDLE)
            if idle and asked == ended + aborted + failed and await asyncio.to_thread(self.healthy):
                return metrics
            counts = f"{asked:.0f} requests, {ended:.0f} finished, {aborted:.0f} aborted, {failed:.0f} failed"
            assert time.monotonic() < deadline, (
                f"it did not settle: {counts}; {[metrics[f'nextn:{n}'] for n in IDLE]}"
            )
            await asyncio.sleep(0.05)

    def complaints(self) -> list[str]:
        """Lines of the log that no fault justifies."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "Traceback" in line or "AssertionError" in line or "never" in line]


def children(pid: int, word: bytes) -> list[int]:
    """Child processes of all threads of a process that have the word in their command line."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [child for child in map(int, task.read_text().split()) if word in command(child)]
    return found


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def runs(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def family(pid: int) -> list[tuple[int, float]]:
    """A process and all its descendants: (pid, MiB). Memory that several processes share is divided among
    them (Pss), because forked processes share most of their memory."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop()
        waiting += parents.get(each, [])
        with contextlib.suppress(OSError, IndexError):
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            found.append((each, int(rollup.partition("\nPss:")[2].split()[0]) / 2**10))
    return found
