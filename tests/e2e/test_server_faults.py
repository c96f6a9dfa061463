"""What goes wrong: clients that leave, a full queue, an engine that dies, a server that is asked to end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from support.server_process import RUNNING, USED, ServerProcess, check_ended, idle, in_background, until

StartServer = Callable[..., ServerProcess]
LONG = {"prompt": "x", "max_tokens": 900, "temperature": 0}


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


def test_engine_killed(start: StartServer) -> None:
    """Streams get an error event, other requests a 500; then 503 until a new engine serves."""
    server = start(SCRIPT_STEP="0.05").wait_ready()
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    stream = client.completions.create(model="scripted", prompt="x", max_tokens=900, stream=True)
    next(stream)
    answers: list[httpx.Response] = []
    (waiting,) = in_background(
        lambda: answers.append(httpx.post(server.url + "/v1/completions", json=LONG, timeout=30))
    )
    until(lambda: server.metrics()[RUNNING] == 2)
    generated = server.metrics()["nextn:generation_tokens_total"]
    os.kill(server.engine_pid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(openai.APIError, match="the engine died"):
        list(stream)
    waiting.join()
    assert time.monotonic() - began < 15  # they do not wait until their own timeout
    assert answers[0].status_code == 500
    assert answers[0].json()["error"]["type"] == "engine_dead"
    assert httpx.get(server.url + "/health").status_code == 503
    refused = httpx.post(server.url + "/v1/completions", json=LONG)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    until(lambda: httpx.get(server.url + "/health").status_code == 200)
    assert httpx.post(server.url + "/v1/completions", json=LONG | {"max_tokens": 5}).status_code == 200
    assert server.metrics()["nextn:generation_tokens_total"] >= generated + 5
    assert any("the engine process ended (signal 9)" in line for line in server.stderr)


def test_engine_that_does_not_start_again_at_first(start: StartServer, tmp_path: Path) -> None:
    obstacle = tmp_path / "obstacle"
    server = start(SCRIPT_FAIL=f"load-if {obstacle}").wait_ready()
    obstacle.touch()
    os.kill(server.engine_pid(), signal.SIGKILL)
    until(lambda: any("does not start again: the checkpoint is no good" in line for line in server.stderr))
    assert httpx.get(server.url + "/health").status_code == 503
    obstacle.unlink()
    until(lambda: httpx.get(server.url + "/health").status_code == 200)
    server.interrupt()
    check_ended(server, 130)


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


def test_step_that_raises(start: StartServer) -> None:
    server = start(SCRIPT_FAIL="step").wait_ready()
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x" * 12}, timeout=30)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "engine_dead"
    until(lambda: httpx.get(server.url + "/health").status_code == 200)
    assert httpx.post(server.url + "/v1/completions", json={"prompt": "x"}).status_code == 200
    assert any("RuntimeError: a step went wrong" in line for line in server.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_shutdown_drains(start: StartServer, number: signal.Signals) -> None:
    """The signal reaches the whole group, as on a terminal. What runs is finished; new requests get 503."""
    server = start(SCRIPT_STEP="0.05").wait_ready()
    answers: list[httpx.Response] = []
    body = LONG | {"max_tokens": 60}
    (running,) = in_background(
        lambda: answers.append(httpx.post(server.url + "/v1/completions", json=body, timeout=30))
    )
    until(lambda: busy(server))
    os.killpg(server.process.pid, number)
    until(lambda: httpx.get(server.url + "/health").status_code == 503)
    assert httpx.post(server.url + "/v1/completions", json=body).json()["error"]["code"] == "shutting_down"
    running.join()
    assert (answers[0].status_code, answers[0].json()["usage"]["completion_tokens"]) == (200, 60)
    check_ended(server, 130 if number == signal.SIGINT else 0)
    (said,) = (line for line in server.stderr if "shutting down: " in line)
    assert said.endswith("running requests (1) have 30 seconds to finish; Ctrl-C again ends at once")


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


def test_second_interrupt_ends_at_once(start: StartServer) -> None:
    server = start(SCRIPT_STEP="0.05").wait_ready()
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.interrupt()
        until(lambda: httpx.get(server.url + "/health").status_code == 503)
        server.interrupt()
        assert server.wait(10) == 130
    check_ended(server, 130)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ((), {"SCRIPT_FAIL": "load"}, "nextn serve: error: the checkpoint is no good"),
        (("--model-path", "/no/such"), {}, "nextn serve: error: /no/such: there is no such folder"),
        (("--host", "203.0.113.1"), {}, "nextn serve: error: cannot listen on --host 203.0.113.1: "),
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


def test_port_in_use(start: StartServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start("--port", str(port))
        check_ended(server, 1)
    message = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port"
    assert server.stderr == [f"nextn serve: error: {message}"]


def test_nothing_is_left(start: StartServer, tmp_path: Path) -> None:
    """The engine's socket lies where only this user may look, and only until the engine is connected. If the
    server is killed, its engine ends too. (Besides, one line of the log names all options that ask for
    nothing.)"""
    options = ("--pp", "1", "--trust-remote-code", "--enable-mixed-chunk")
    server = start(*options, TMPDIR=str(tmp_path), SCRIPT_LOAD="0.5")
    until(lambda: any(tmp_path.iterdir()))
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    server.wait_ready()
    assert list(tmp_path.iterdir()) == []
    (said,) = (line for line in server.stderr if "have no effect" in line)
    assert all(name in said for name in ("--pp 1", "--trust-remote-code", "--enable-mixed-chunk"))
    assert httpx.post(server.url + "/v1/completions", json={"prompt": "x"}).status_code == 200
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: server.session() == [])
