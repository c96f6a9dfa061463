"""Helpers for notebooks that start a server, wait for it and end it. Names as in SGLang (`sglang.utils`).

process, port = launch_server_cmd("nextn serve --speculative-num-steps 2")
wait_for_server(f"http://127.0.0.1:{port}", process=process)
...
terminate_process(process)
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import socket
import sys
import tempfile
import time
from pathlib import Path

import httpx

from nextn.bench.logged_process import LoggedProcess

POLL_SECONDS = 0.2
ANSWER_SECONDS = 5.0  # timeout of one poll
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
OURS = {"python": [], "python3": [], "nextn": ["-m", "nextn"]}  # arguments of this interpreter


def launch_server_cmd(
    command: str, host: str = "127.0.0.1", port: int | None = None
) -> tuple[LoggedProcess, int]:
    """Starts `command` with `--port PORT` appended, and prints where its output goes (`process.log`).

    `command` may begin with NAME=VALUE words, and its lines may end in a backslash. `python` and `nextn` mean
    those of the running interpreter. `port` None: a free port of `host`. The server has its own process
    group, so interrupting a cell does not end it. It ends when this interpreter exits.

    Raises ValueError for a command that cannot be run.
    """
    words = shlex.split(command.replace("\\\n", " "))
    count = next((i for i, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    assigned = dict(word.split("=", 1) for word in words[:count])
    words = words[count:]
    if not words:
        raise ValueError(f"{command!r} names no program; give a command such as 'nextn serve'")
    if any(word == "--port" or word.startswith("--port=") for word in words):
        raise ValueError("--port is appended to the command; leave it out and give port=")
    if words[0] in OURS:
        words = [sys.executable, *OURS[words[0]], *words[1:]]
    port = free_port(host) if port is None else port
    handle, log = tempfile.mkstemp(prefix=f"server-{port}-", suffix=".log")
    os.close(handle)
    try:
        process = LoggedProcess(
            [*words, "--port", str(port)], Path(log), {**os.environ, **assigned}, own_group=True
        )
    except OSError as e:
        os.unlink(log)
        raise ValueError(f"{words[0]} cannot be run: {e.strerror}") from e
    atexit.register(process.stop)
    print(f"port {port}; the server's output goes to {log}")
    return process, port


def wait_for_server(
    base_url: str, timeout: float | None = None, process: LoggedProcess | None = None
) -> None:
    """Returns when the server at `base_url` lists its models and, if it has a /health, is healthy.

    `timeout`: seconds; None: no limit. Pass `process` so that the end of the server is noticed.

    Raises RuntimeError if `process` has ended, TimeoutError after the timeout. Both messages contain the last
    lines of its output.
    """
    url = base_url.rstrip("/").removesuffix("/v1")
    deadline = None if timeout is None else time.monotonic() + timeout
    with httpx.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False) as client:
        while True:
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.returncode}{tail(process)}")
            if is_ready(client):
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{url} was not ready after {timeout:g} s{tail(process)}")
            time.sleep(POLL_SECONDS)


def terminate_process(process: LoggedProcess) -> None:
    """Ends the process and its process group, by force if it takes long. The process may have ended
    already."""
    process.stop()
    atexit.unregister(process.stop)


def is_ready(client: httpx.Client) -> bool:
    try:
        listed = client.get("/v1/models").status_code == 200
        return listed and client.get("/health").status_code in (200, 404)
    except httpx.HTTPError:
        return False


def tail(process: LoggedProcess | None) -> str:
    if process is None:
        return ""
    return "\n".join([f"; the last lines of {process.log}:", *process.last_lines()])


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])
