"""The helper that every check gets: it starts servers and tools, in the tool's environment and folder."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plain_calls
from environments import ENVIRONMENTS, HERE, Environment
from findings import Failed, Finding

from nextn.bench.local_server import LocalServer
from nextn.bench.logged_process import LoggedProcess
from nextn.config import EMBEDDED, model_folder

TEMPLATE = HERE.parents[1] / "examples" / "deepseek_v31_tools.jinja"
PARSERS = (
    "--tool-call-parser", "deepseekv31", "--reasoning-parser", "deepseek-v3",
    "--chat-template", str(TEMPLATE),
)  # fmt: skip
TOOL_SECONDS = 600.0
READY_SECONDS = 120.0
# Tools must not contact a model hub or send telemetry. Each server and tool has one thread.
QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "VLLM_DO_NOT_TRACK": "1", "NO_PROXY": "127.0.0.1,localhost",
    "PYTHONUNBUFFERED": "1",
}  # fmt: skip


@dataclass
class Bench:
    """The helper for one tool's checks. `envs`: folder of all environments. `folder`: the tool's folder,
    empty at first."""

    environment: Environment
    envs: Path
    folder: Path
    stack: contextlib.ExitStack
    model: str = EMBEDDED

    @property
    def tokenizer(self) -> Path:
        return model_folder(EMBEDDED)

    @property
    def bin(self) -> Path:
        return self.environment.python(self.envs).parent

    def server(self, *options: str, name: str = "server") -> LocalServer:
        """Starts a server on the embedded model and waits until it is ready. It ends with the tool's
        checks."""
        log = self.folder / f"{name}-{time.monotonic_ns()}.log"
        started = LocalServer(name, ["--threads", "1", *options], log)
        self.stack.callback(started.stop)
        started.wait_ready()
        return started

    def run(self, words: Sequence[str | Path], **environment: str) -> str:
        """Runs the tool and returns its output. Raises Failed, with the output's last lines, if the exit code
        is not 0."""
        done = subprocess.run(
            words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TOOL_SECONDS,
            cwd=self.folder, env={**os.environ, **QUIET, **environment},
        )  # fmt: skip
        (self.folder / f"output-{time.monotonic_ns()}.log").write_text(done.stdout)
        if done.returncode != 0:
            last = [line for line in done.stdout.splitlines() if line.strip()][-3:]
            raise Failed(f"exit code {done.returncode}: {' '.join(last)}")
        return done.stdout

    def service(self, words: Sequence[str | Path], ready: str, **environment: str) -> LoggedProcess:
        """Starts a server of the tool and waits until the URL `ready` answers. It ends with the tool's
        checks. Raises Failed."""
        process = LoggedProcess(
            [str(word) for word in words], self.folder / f"service-{time.monotonic_ns()}.log",
            {**os.environ, **QUIET, **environment}, own_group=True,
        )  # fmt: skip
        self.stack.callback(process.stop)

        def up() -> bool:
            if process.poll() is not None:
                raise Failed(f"it ended with {process.returncode}: {' '.join(process.last_lines()[-3:])}")
            try:
                plain_calls.get_text(ready)
            except (urllib.error.URLError, ConnectionError):
                return False
            return True

        until(up, f"{ready} does not answer", READY_SECONDS)
        return process

    def inside(self, script: str, **settings: Any) -> list[Finding]:
        """Runs a script of checks/ in the tool's environment and returns its findings."""
        printed = self.run(
            [self.bin / "python", HERE / "checks" / script, json.dumps(settings)], PYTHONPATH=str(HERE)
        )
        return [Finding(**found) for found in json.loads(printed.splitlines()[-1])]


@contextlib.contextmanager
def bench_for(name: str, envs: Path, folder: Path) -> Iterator[Bench]:
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        yield Bench(ENVIRONMENTS[name], envs, folder, stack)


def until(true: Callable[[], object], otherwise: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise Failed(f"{otherwise} after {seconds:.0f} s")
        time.sleep(0.05)


def at_once(url: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """Sends all requests, 16 at a time, and returns the answers in order."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda body: plain_calls.post(url, body), bodies))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
