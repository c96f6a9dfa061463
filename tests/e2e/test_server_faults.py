"""What goes wrong: clients that leave, a full queue, an engine that dies, a server that is asked to end. (An
address that is taken: tests/unit/server/test_listen.py. A second Ctrl-C: test_server_replicas.py.)"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import openai
import pytest
from support.server_process import (
    RUNNING,
    SCRIPTED,
    USED,
    ServerProcess,
    check_ended,
    idle,
    in_background,
    until,
)

StartServer = Callable[..., ServerProcess]
LONG = {"prompt": "x", "max_tokens": 900, "temperature": 0}


class Failing(NamedTuple):
    """obstacle: while this file exists, the engine cannot be built. temporary: the server's folder for
    temporary files. mode: of the folder that the server made there."""

    server: ServerProcess
    obstacle: Path
    temporary: Path
    mode: int


def busy(server: ServerProcess) -> bool:
    return server.metrics()[RUNNING] == 1


def test_client_that_leaves_a_stream(slow: ServerProcess) -> None:
    aborted = slow.metrics()["nextn:num_aborted_requests_total"]
    with httpx.stream("POST", slow.url + "/v1/completions", json=LONG | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert busy(slow)
        assert slow.metrics()[USED] > 0
    until(lambda: idle(slow))
    assert slow.metrics()["nextn:num_aborted_requests_total"] == aborted + 1


def test_clients_that_leave_without_a_word(slow: ServerProcess) -> None:
    """One that does not stream, and one that waits for its stream's first token."""

    def leave(seconds: float, stream: bool) -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(slow.url + "/v1/completions", json=LONG | {"stream": stream}, timeout=seconds)

    (first,) = in_background(lambda: leave(1, False))
    until(lambda: busy(slow))
    leave(0.3, True)
    until(lambda: slow.metrics()["nextn:num_queue_reqs"] == 0, seconds=0.5)
    first.join()
    until(lambda: idle(slow))


def test_queue_full(slow: ServerProcess) -> None:
    def post() -> httpx.Response:
        return httpx.post(slow.url + "/v1/completions", json=LONG | {"max_tokens": 90}, timeout=30)

    answers: list[httpx.Response] = []
    threads = in_background(lambda: answers.append(post()), lambda: answers.append(post()))
    until(lambda: slow.metrics()["nextn:num_queue_reqs"] == 1)
    refused = post()
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "queue_full"
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]


def test_decode_log_line(slow: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 60}
    assert httpx.post(slow.url + "/v1/completions", json=body, timeout=30).status_code == 200
    metrics = slow.metrics()
    assert metrics["nextn:spec_accept_length"] == 3
    assert metrics["nextn:spec_accept_rate"] == 1
    assert metrics["nextn:gen_throughput"] == 0  # nothing runs now
    lines = [line for line in slow.stderr if "Decode batch" in line]
    assert len(lines) >= 4
    assert "#running-req: 1, #token: " in lines[-2]  # the last may be of the step that ended it
    assert "accept len: 3.00, accept rate: [1.00, 1.00], gen throughput (token/s): " in lines[-2]


def test_interrupt_while_the_engine_loads(start: StartServer) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = start("--port", str(port), SCRIPT_LOAD="30")
    url = f"http://127.0.0.1:{port}"
    until(lambda: answers(url))
    assert httpx.get(url + "/health").status_code == 503
    assert httpx.post(url + "/v1/completions", json=LONG).json()["error"]["code"] == "engine_unavailable"
    server.interrupt()
    check_ended(server, 130)
    assert server.stdout == []


def answers(url: str) -> bool:
    try:
        return bool(httpx.get(url + "/version").status_code)
    except httpx.ConnectError:
        return False


def test_shutdown_does_not_wait_for_ever(start: StartServer) -> None:
    server = start("--shutdown-timeout", "0.3", SCRIPT_STEP="0.05").wait_ready()
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.interrupt()
        rest = [line for line in lines if line]
    assert "the server was shut down before the request finished" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    check_ended(server, 130)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ((), {"SCRIPT_FAIL": "load"}, "nextn serve: error: the checkpoint is no good"),
        (("--model-path", "/no/such"), {}, "nextn serve: error: /no/such: there is no such folder"),
    ],
)
def test_start_that_fails(
    start: StartServer, options: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    """One line, exit code 1, no restarts, nothing left."""
    server = start(*options, **environment)
    check_ended(server, 1)
    assert len(server.stderr) == 1
    assert server.stderr[0].startswith(message)
    assert server.stdout == []


# --- one server, whose engine dies twice


@pytest.fixture(scope="module")
def failing(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    """Steps of 50 ms."""
    folder = tmp_path_factory.mktemp("failing")
    obstacle, temporary = folder / "obstacle", folder / "temporary"
    temporary.mkdir()
    options = ("--pp", "1", "--trust-remote-code", "--enable-mixed-chunk")
    environment = {
        "SCRIPT_TOKENIZER": str(tokenizer_folder), "SCRIPT_STEP": "0.05", "SCRIPT_LOAD": "0.5",
        "SCRIPT_FAIL": f"load-if {obstacle}", "TMPDIR": str(temporary),
    }  # fmt: skip
    server = ServerProcess([SCRIPTED, "--port", "0", *options], environment)
    try:
        until(lambda: any(temporary.iterdir()))
        (made,) = temporary.iterdir()
        mode = made.stat().st_mode
        yield Failing(server.wait_ready(), obstacle, temporary, mode)
    finally:
        server.kill()


def test_what_lies_in_the_temporary_folder(failing: Failing) -> None:
    """The engine's socket lies where only this user may look, and only until the engine is connected.
    (Besides, one line of the log names all options without effect.)"""
    assert failing.mode & 0o077 == 0
    assert list(failing.temporary.iterdir()) == []
    (said,) = (line for line in failing.server.stderr if "have no effect" in line)
    assert all(name in said for name in ("--pp 1", "--trust-remote-code", "--enable-mixed-chunk"))


def test_engine_killed(failing: Failing) -> None:
    """Streams get an error event, other requests a 500; then 503 until a new engine serves, which does not
    start at first."""
    server = failing.server
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = client.completions.create(model="scripted", prompt="x", max_tokens=900, stream=True)
    next(stream)
    answers: list[httpx.Response] = []
    (waiting,) = in_background(
        lambda: answers.append(httpx.post(server.url + "/v1/completions", json=LONG, timeout=30))
    )
    until(lambda: server.metrics()[RUNNING] == 2)
    generated = server.metrics()["nextn:generation_tokens_total"]
    failing.obstacle.touch()
    os.kill(server.engine_pid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(openai.APIError, match="the engine died"):
        list(stream)
    waiting.join()
    assert time.monotonic() - began < 15  # they do not wait until their own timeout
    assert answers[0].status_code == 500
    assert answers[0].json()["error"]["type"] == "engine_dead"
    until(lambda: any("does not start again: the checkpoint is no good" in line for line in server.stderr))
    assert httpx.get(server.url + "/health").status_code == 503
    refused = httpx.post(server.url + "/v1/completions", json=LONG)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    failing.obstacle.unlink()
    until(lambda: httpx.get(server.url + "/health").status_code == 200)
    assert httpx.post(server.url + "/v1/completions", json=LONG | {"max_tokens": 5}).status_code == 200
    assert server.metrics()["nextn:generation_tokens_total"] >= generated + 5
    assert any("the engine process ended (signal 9)" in line for line in server.stderr)


def test_step_that_raises(failing: Failing) -> None:
    server = failing.server
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x" * 12}, timeout=30)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "engine_dead"
    until(lambda: httpx.get(server.url + "/health").status_code == 200)
    assert any("RuntimeError: a step went wrong" in line for line in server.stderr)


def test_shutdown_drains(failing: Failing) -> None:
    """The signal reaches the whole group, as on a terminal. What runs is finished; new requests get 503."""
    server = failing.server
    answers: list[httpx.Response] = []
    body = LONG | {"max_tokens": 60}
    (running,) = in_background(
        lambda: answers.append(httpx.post(server.url + "/v1/completions", json=body, timeout=30))
    )
    until(lambda: busy(server))
    os.killpg(server.process.pid, signal.SIGTERM)  # Ctrl-C: test_server_replicas.py
    until(lambda: httpx.get(server.url + "/health").status_code == 503)
    assert httpx.post(server.url + "/v1/completions", json=body).json()["error"]["code"] == "shutting_down"
    running.join()
    assert (answers[0].status_code, answers[0].json()["usage"]["completion_tokens"]) == (200, 60)
    assert server.wait() == 0
    until(lambda: server.session() == [])
    (said,) = (line for line in server.stderr if "shutting down: " in line)
    assert said.endswith("running requests (1) have 30 seconds to finish; Ctrl-C again ends at once")
