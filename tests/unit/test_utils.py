"""The notebook helpers against small servers: ready, not healthy yet, dead at once, unwilling to end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support.processes import runs
from support.server_process import until

from nextn.bench import logged_process
from nextn.bench.logged_process import LoggedProcess
from nextn.utils import launch_server_cmd, terminate_process, wait_for_server

SERVER = """
import http.server, os, signal, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
begin = time.monotonic()
{first}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        healthy = time.monotonic() - begin > {sick}
        known = {{"/v1/models": 200, "/health": 200 if healthy else 503}}
        self.send_response(known.get(self.path, 404) if {health} or self.path != "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

print("said by the server", os.environ.get("WORD"), sys.argv[1:], flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
Launch = Callable[..., tuple[LoggedProcess, int]]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Launches the small server: launch(before="", after="", **what it does)."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(logged_process, "STOP_SECONDS", 0.5)
    started: list[LoggedProcess] = []

    def start(
        before: str = "", after: str = "", first: str = "", sick: float = 0, health: bool = True
    ) -> tuple[LoggedProcess, int]:
        script = tmp_path / "server.py"
        script.write_text(SERVER.format(first=textwrap.dedent(first), sick=sick, health=health))
        process, port = launch_server_cmd(f"{before} python {shlex.quote(str(script))} {after}")
        started.append(process)
        return process, port

    yield start
    for process in started:
        terminate_process(process)


def wait(process: LoggedProcess, port: int, timeout: float = 20) -> None:
    wait_for_server(f"http://127.0.0.1:{port}", timeout, process)


def test_launch_wait_terminate(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    process, port = launch("WORD=a=b", "--flag \\\n 'two words'")
    wait(process, port)
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
    assert capsys.readouterr().out == f"port {port}; the server's output goes to {process.log}\n"
    said = process.log.read_text().splitlines()[0]
    assert said == f"said by the server a=b ['--flag', 'two words', '--port', '{port}']"
    terminate_process(process)
    assert process.returncode == -signal.SIGTERM
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/v1/models")
    terminate_process(process)  # once more does no harm


def test_listed_models_are_not_health(launch: Launch) -> None:
    process, port = launch(sick=0.6)
    begin = time.monotonic()
    wait_for_server(f"http://127.0.0.1:{port}/v1/", 20, process)
    assert time.monotonic() - begin > 0.6


def test_a_server_without_health(launch: Launch) -> None:
    wait(*launch(health=False))


def test_a_server_that_dies_early_says_why(launch: Launch) -> None:
    process, port = launch(first="print('no such model: x'); sys.exit(3)")
    with pytest.raises(RuntimeError, match="exit code 3") as failure:
        wait(process, port)
    assert str(failure.value).endswith(f"; the last lines of {process.log}:\nno such model: x")


def test_a_server_that_is_never_ready(launch: Launch) -> None:
    process, port = launch(sick=1e9)
    with pytest.raises(TimeoutError, match=r"was not ready after 0\.6 s; the last lines of .*\nsaid by"):
        wait(process, port, 0.6)
    with pytest.raises(TimeoutError, match=r"was not ready after 0 s$"):
        wait_for_server(f"http://127.0.0.1:{port}", 0)


def test_its_children_end_with_it_even_if_they_would_not(launch: Launch) -> None:
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    process, port = launch(
        first=f"""\
        child = subprocess.Popen([sys.executable, "-c", {sleeper!r}])
        print("child", child.pid, flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        """
    )
    wait(process, port)
    child = int(process.log.read_text().split()[1])
    assert os.getpgid(child) == process.pid
    terminate_process(process)
    assert process.returncode == -signal.SIGKILL
    until(lambda: not runs(child))


def test_a_server_ends_with_the_interpreter(tmp_path: Path) -> None:
    code = "from nextn.utils import launch_server_cmd as l; print(l('python -m http.server')[0].pid)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert not runs(int(done.stdout.split()[-1]))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("A=1", "names no program"),
        ("nextn serve --port 3", "leave it out and give port="),
        ("nextn serve --port=3", "leave it out and give port="),
        ("no-such-program --x", "no-such-program cannot be run: No such file"),
    ],
)
def test_mistakes(command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        launch_server_cmd(command)
    assert not list(tmp_path.iterdir())


def test_our_own_command_is_this_interpreter_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    process, _ = launch_server_cmd("nextn serve --help", port=7)
    assert process.wait(20) == 0
    assert process.args == [sys.executable, "-m", "nextn", "serve", "--help", "--port", "7"]
    assert process.log.read_text().startswith("usage: nextn serve")
    terminate_process(process)
