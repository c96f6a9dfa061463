"""Bounds on what clients and a sick engine may do: sizes, times, restarts; and what the log says of it."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.server_process import SCRIPTED, ServerProcess, check_ended, idle, in_background, until

from nextn.config import model_folder

StartServer = Callable[..., ServerProcess]
LIMITS = (
    "--client-timeout", "1", "--request-timeout", "2", "--max-request-bytes", "3000",
    "--log-format", "json", "--log-requests",
)  # fmt: skip
LONG = {"prompt": "x", "max_tokens": 900, "temperature": 0}


@pytest.fixture(scope="module")
def limited(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    """Steps of 20 ms: a request of 900 tokens would take six seconds."""
    command = [SCRIPTED, "--port", "0", *LIMITS]
    environment = {"SCRIPT_TOKENIZER": str(tokenizer_folder), "SCRIPT_STEP": "0.02"}
    with ServerProcess(command, environment) as server:
        yield server


def connected(server: ServerProcess, sent: bytes, room: int | None = None) -> socket.socket:
    """room: for answers that were not read yet, bytes."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    client = socket.socket()
    client.settimeout(5)
    if room is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.connect((host, int(port)))
    client.sendall(sent)
    return client


def lines(server: ServerProcess, about: str) -> list[dict[str, object]]:
    return [shown for shown in map(json.loads, server.stderr) if str(shown["message"]).startswith(about)]


def test_request_timeout(limited: ServerProcess) -> None:
    whole = httpx.post(limited.url + "/v1/completions", json=LONG, headers={"x-request-id": "late-1"})
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "request_timeout")
    until(lambda: idle(limited))
    (shown,) = (line for line in lines(limited, "Request ended early") if line["request_id"] == "late-1")
    assert "--request-timeout" in str(shown["why"])
    assert isinstance(shown["output_tokens"], int)
    assert shown["output_tokens"] > 0
    with httpx.stream("POST", limited.url + "/v1/completions", json=LONG | {"stream": True}) as stream:
        rest = [line for line in stream.iter_lines() if line]
    assert "request_timeout" in rest[-2]
    assert rest[-1] == "data: [DONE]"


def test_a_body_that_is_too_long(limited: ServerProcess) -> None:
    answer = httpx.post(limited.url + "/v1/completions", json=LONG | {"prompt": "x" * 3000})
    assert answer.status_code == 413
    assert "--max-request-bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/completions HTTP/1.1\r\nhos",
        b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"prompt',
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_client_that_does_not_send_its_request(limited: ServerProcess, sent: bytes) -> None:
    began = time.monotonic()
    with connected(limited, sent) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1000) == b""
    assert 0.9 < time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"a" * 1000),
        (b"GET /health HTTP/1.1\r\nx: ", b"a" * 1000),
        (b"GET /health HTTP/1.1\r\n", b"x: %s\r\n" % (b"a" * 1000)),
        (b"POST /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: %s\r\n" % (b"a" * 1000)),
    ],
    ids=["path", "header", "headers", "trailers"],
)
def test_a_head_without_end(limited: ServerProcess, begin: bytes, more: bytes) -> None:
    """The sockets on the way may hold tens of megabytes before a busy server reads the first of them."""
    with connected(limited, begin) as client:
        sent, closed = 0, False
        while sent < 2**27 and not closed:
            try:
                client.sendall(more * 64)
                sent += len(more) * 64
            except OSError:
                closed = True
    assert closed
    assert idle(limited)


def test_requests_without_end_on_one_connection(limited: ServerProcess) -> None:
    """Some may wait behind one another; more than that are not kept."""
    request = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    for count, closed in ((40, False), (40000, True)):
        come = bytearray()
        with connected(limited, b"") as client:
            client.settimeout(0.5)
            with contextlib.suppress(OSError):
                client.sendall(request * count)
            with contextlib.suppress(OSError):
                while part := client.recv(2**20):
                    come += part
        assert come.count(b"HTTP/1.1 200 OK") == count or closed
        assert (b"400 Bad Request" in come or len(come) == 0) is closed


def whole_texts(count: int) -> bytes:
    """A request for a stream of whole texts so far, of 1 to `count` tokens."""
    body = json.dumps({"text": "x", "stream": True, "sampling_params": {"max_new_tokens": count}})
    return f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


# 20 MB: far more than fits into the sockets on the way. Steps are slow, because a busy server sends the texts
# of several fast ones together.
WHOLE_TEXTS, SLOW_STEPS = whole_texts(6000), {"SCRIPT_RUN": "1", "SCRIPT_STEP": "0.001"}


def test_a_client_that_does_not_take_its_answer(start: StartServer) -> None:
    server = start("--client-timeout", "1", "--context-length", "7000", **SLOW_STEPS).wait_ready()
    with connected(server, WHOLE_TEXTS, 2**16) as client:
        client.recv(100)
        shown = "its client did not read its answer"
        until(lambda: any(shown in line for line in server.stderr))
        until(lambda: idle(server))
        # The engine may have come to the end of it before the client's time was up.
        metrics = server.metrics()
        ended = ("num_aborted_requests_total", 'num_finished_requests_total{finish_reason="length"}')
        assert sum(metrics.get(f"nextn:{name}", 0) for name in ended) == 1


def test_an_answer_may_be_taken_slowly_while_the_server_drains(start: StartServer) -> None:
    """The engine is done with it long before the client is."""
    server = start("--context-length", "7000", **SLOW_STEPS).wait_ready()
    with connected(server, WHOLE_TEXTS, 2**16) as client:
        come = bytearray(client.recv(100))
        until(lambda: idle(server))
        server.interrupt()
        time.sleep(3)
        assert server.process.poll() is None, "the sockets on the way hold it all"
        while part := client.recv(2**20):
            come += part
    assert come.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    check_ended(server, 130)


def test_log_of_a_request(limited: ServerProcess) -> None:
    """Both lines, of one request id, which is the answer's; each a JSON object, as all lines are."""
    answer = httpx.post(limited.url + "/v1/completions", json={"prompt": "hello", "max_tokens": 6, "seed": 5})
    own = answer.headers["x-request-id"]
    until(lambda: any(line["request_id"] == own for line in lines(limited, "Finished request")))
    shown = [line for line in map(json.loads, limited.stderr) if line.get("request_id") == own]
    assert [str(line["message"]).split(",")[0] for line in shown] == ["Received request", "Finished request"]
    assert shown[0]["prompt"] == "hello"
    assert shown[0]["params"] == {"max_tokens": 6, "seed": 5}
    assert shown[1]["text"] == answer.json()["choices"][0]["text"]
    assert (shown[1]["output_tokens"], shown[1]["finish_reason"]) == (6, "length")
    assert 0 <= shown[1]["queue_time"] <= shown[1]["ttft"] <= shown[1]["e2e"]


def test_an_engine_that_hangs_and_one_that_dies_too_often(start: StartServer) -> None:
    """Its silence is seen long before the watchdog ends it, and not where it has nothing to do. After the
    second death in ten minutes the server ends, with 1."""
    server = start("--watchdog-timeout", "8", "--max-engine-restarts", "1", SCRIPT_STEP="0.05").wait_ready()
    name = "nextn:seconds_since_last_step"
    time.sleep(0.5)
    assert server.metrics()[name] == 0
    answers: list[httpx.Response] = []
    (waiting,) = in_background(
        lambda: answers.append(httpx.post(server.url + "/v1/completions", json=LONG, timeout=30))
    )
    until(lambda: not idle(server))
    os.kill(server.engine_pid(), signal.SIGSTOP)
    until(lambda: server.metrics()[name] > 1)
    (load,) = httpx.get(server.url + "/v1/loads").json()["loads"]
    (state,) = httpx.get(server.url + "/server_info").json()["internal_states"]
    assert min(load["seconds_since_last_step"], state["seconds_since_last_step"]) > 1
    assert httpx.get(server.url + "/health").status_code == 200
    os.kill(server.engine_pid(), signal.SIGCONT)
    until(lambda: server.metrics()[name] < 1)
    os.kill(server.engine_pid(), signal.SIGSTOP)
    waiting.join()
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (500, "engine_dead")
    assert any("no step for 8 s (--watchdog-timeout)" in line for line in server.stderr)
    assert httpx.get(server.url + "/livez").status_code == 200
    until(lambda: httpx.get(server.url + "/readyz").status_code == 200)
    metrics = server.metrics()
    assert (metrics["nextn:engine_up"], metrics["nextn:engine_restarts_total"]) == (1, 1)
    os.kill(server.engine_pid(), signal.SIGKILL)
    check_ended(server, 1)
    assert server.stderr[-1].startswith(
        "nextn serve: error: the engine ended again after 1 restarts in 10 minutes"
    )


def memory(server: ServerProcess, which: str) -> float:
    """Of the HTTP process, MB."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (shown,) = (line.split()[1] for line in lines if line.startswith(which))
    return int(shown) / 1024


def lists(before: str, item: str, count: int) -> bytes:
    """JSON with a list of many items. (`json.dumps` takes long.)"""
    return f'{{"{before}": [{", ".join([item] * count)}]}}'.encode()


LARGE: dict[str, tuple[str, object, str]] = {
    "a text": ("/v1/completions", {"prompt": "The quick brown fox, " * 10**6}, "more than 4096 tokens"),
    "without a space": ("/generate", {"text": "a" * 20 * 2**20}, "more than 4096 tokens"),
    "a chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi! " * 10**6}] * 5},
        "more than 4096 tokens",
    ),
    "to be tokenized": ("/tokenize", {"prompt": ["a" * 2**20] * 20}, "1048576 are allowed"),
    "token ids": ("/v1/completions", lists("prompt", "999", 5 * 10**6), "the body has more than"),
    "lists": ("/generate", lists("input_ids", "[]", 5 * 10**6), "the body has more than"),
    "messages": ("/v1/chat/completions", lists("messages", "1", 10**6), "messages[0]"),
    "to be made text": ("/detokenize", {"tokens": [999] * 300_000}, "262144 are allowed"),
}  # fmt: skip


def test_large_requests_take_no_memory(start: StartServer) -> None:
    """Tokenizing 20 MB takes gigabytes. What is allowed is there for a while."""
    folder = str(model_folder("nextn-tiny"))
    server = start("--context-length", "4096", SCRIPT_TOKENIZER=folder).wait_ready()
    small = {"prompt": "hello", "max_tokens": 3, "temperature": 0}
    answer = httpx.post(server.url + "/v1/completions", json=small).json()["choices"]
    before = memory(server, "VmRSS")
    for path, body, shown in LARGE.values():
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        refused = httpx.post(server.url + path, content=content, timeout=60)
        assert refused.status_code == 400
        assert shown in refused.json()["error"]["message"]
    allowed = {"prompt": "The quick brown fox, " * 45_000}
    assert httpx.post(server.url + "/tokenize", json=allowed, timeout=60).json()["count"] > 150_000
    assert memory(server, "VmHWM") < before + 400
    assert httpx.post(server.url + "/v1/completions", json=small).json()["choices"] == answer
    until(lambda: memory(server, "VmRSS") < before + 50, seconds=60)


def test_traces_reach_a_collector(start: StartServer) -> None:
    """What is left when the server ends is sent, too. It is asked to end at once: the batch is not full."""
    got: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    trace = "0af7651916cd43dd8448eb211c80319c"
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        in_background(collector.serve_forever)
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        server = start("--otlp-traces-endpoint", endpoint).wait_ready()
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        body = {"prompt": "x", "max_tokens": 5, "n": 2}
        assert httpx.post(server.url + "/v1/completions", json=body, headers=headers).status_code == 200
        server.interrupt()
        check_ended(server, 130)
        collector.shutdown()
    sent = ExportTraceServiceRequest()
    for each in got:
        sent.MergeFromString(each)
    spans = [span for r in sent.resource_spans for s in r.scope_spans for span in s.spans]
    assert sorted(span.name for span in spans) == sorted(["llm_request", "waiting", "prompt", "decode"] * 2)
    assert {span.trace_id.hex() for span in spans} == {trace}
