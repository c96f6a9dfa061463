"""Starts a server with a scripted engine: nextn's (scripted.py) or vLLM's (scripted_vllm.py)."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from nextn.bench.local_server import READY, START_SECONDS
from nextn.bench.logged_process import LoggedProcess
from nextn.config import model_folder
from nextn.utils import free_port

HERE = Path(__file__).parent
MODEL_NAME = "scripted"
HOST = "127.0.0.1"
# The same settings as in peers/variants.py. vLLM needs memory for a cache, which is not used here.
VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_MLA_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip

Started = Iterator[tuple[int, tuple[str, int]]]  # the pid and the address


class Load(NamedTuple):
    """The settings of a scripted engine (scripted.py). model_path: folder with the tokenizer."""

    model_path: str
    brake: Path
    streams: int
    lead: int
    step_ms: float
    per_step: int


@contextmanager
def nextn_server(tree: Path, load: Load, options: list[str]) -> Started:
    """Starts nextn's server from this source tree."""
    command = [sys.executable, str(HERE / "scripted.py"), str(load.brake), str(load.streams), str(load.lead)]
    command += [str(load.step_ms), str(load.per_step), "--model-path", load.model_path, "--port", "0"]
    command += ["--served-model-name", MODEL_NAME, "--log-level", "warning"]
    command += ["--max-running-requests", str(max(256, load.streams)), *options]
    log = load.brake.parent / "server.log"
    process = LoggedProcess(command, log, os.environ | {"PYTHONPATH": str(tree.resolve())})

    def address() -> tuple[str, int] | None:
        found: re.Match[str] | None = READY.search(log.read_text(errors="replace"))
        if found is None:
            return None
        host, _, port = found[1].removeprefix("http://").rpartition(":")
        return host, int(port)

    try:
        yield process.pid, _when_ready(process, address)
    finally:
        process.stop()


@contextmanager
def vllm_server(environment: Path, load: Load, script: list[int]) -> Started:
    """Starts vLLM's server from this virtual environment."""
    port = free_port(HOST)
    own = [str(load.brake), load.streams, load.lead, load.step_ms / 1e3, load.per_step, script]
    command = [str(environment / "bin" / "python"), str(HERE / "scripted_vllm.py"), json.dumps(own)]
    command += [str(model_folder(load.model_path)), "--served-model-name", MODEL_NAME, "--host", HOST]
    command += ["--port", str(port), "--max-num-seqs", str(max(256, load.streams))]
    log = load.brake.parent / "server.log"
    process = LoggedProcess(command, log, os.environ | VLLM, own_group=True)

    def address() -> tuple[str, int] | None:
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5).close()
        except OSError:
            return None
        return HOST, port

    try:
        yield process.pid, _when_ready(process, address)
    finally:
        process.stop()


def _when_ready(process: LoggedProcess, address: Callable[[], tuple[str, int] | None]) -> tuple[str, int]:
    deadline = time.monotonic() + START_SECONDS
    while (found := address()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start:\n{process.log.read_text(errors='replace')}")
        time.sleep(0.05)
    return found
