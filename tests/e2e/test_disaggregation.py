"""A prefill and a decode server on the embedded model: texts, log-probabilities, usage and acceptance are
those of one server, whatever happens to either. (Pages between engines without servers:
tests/unit/engine/test_two_engines.py. Faults of the network: tests/unit/disaggregation.)"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.all_cases import few_or_all
from support.native_kernels import built_levels
from support.server_process import ServerProcess, in_background, until
from support.transfers import NIXL
from support.two_replicas import SERVE, Answers, answers, health
from support.two_servers import TwoServers, two_servers

from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig

PAIR = ("--chunked-prefill-size", "64", "--max-running-requests", "16")
LONG = heldout_prompts(1)[0] * 4


@pytest.fixture(scope="module")
def one() -> Iterator[ServerProcess]:
    with ServerProcess(SERVE) as server:
        yield server


@pytest.fixture(scope="module")
def expected(one: ServerProcess) -> Answers:
    return answers(one)


@pytest.fixture(scope="module")
def pair() -> Iterator[TwoServers]:
    """The last test kills them."""
    with two_servers(PAIR) as servers:
        yield servers


def check(pair: TwoServers, expected: Answers) -> None:
    """The answers; their prompts' pages came from the prefill server."""
    before = pair.transfers()
    assert answers(pair) == expected
    after = pair.transfers()
    assert after["finished_total"] > before["finished_total"]
    assert after["fallbacks_total"] == before["fallbacks_total"]


def test_answers_are_those_of_one_server(pair: TwoServers, expected: Answers) -> None:
    check(pair, expected)


SIZES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {  # both, prefill, decode
    "tp-2-to-groups": ((), ("--tp-size", "2"), ("--dp-size", "2", "--enable-dp-attention", "--tp-size", "2")),
}
MORE_SIZES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "groups-to-ep-2-by-shm": (
        ("--disaggregation-transfer-backend", "shm", "--overlap-schedule", "on"),
        ("--dp-size", "2", "--enable-dp-attention", "--tp-size", "2", "--ep-size", "2"),
        ("--tp-size", "2", "--ep-size", "2"),
    ),
    "nixl": (("--disaggregation-transfer-backend", "nixl"), (), ()),
    "tp-2-to-dp-2": ((), ("--tp-size", "2"), ("--dp-size", "2")),
}


@pytest.mark.skipif(not built_levels(), reason="no native kernels")
@pytest.mark.parametrize("sizes", few_or_all([*SIZES], [*MORE_SIZES]))
def test_other_layouts(sizes: str, expected: Answers) -> None:
    """And at the end, without a prefill server and a fallback, requests fail."""
    if sizes == "nixl" and not NIXL:
        pytest.skip("NIXL is not installed")
    both, prefill, decode = (SIZES | MORE_SIZES)[sizes]
    with two_servers(both, prefill, (*decode, "--disaggregation-fallback", "off")) as servers:
        check(servers, expected)
        servers.prefill.kill()
        answer = servers.post("/v1/completions", prompt=LONG, max_tokens=9)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "prefill_failed"


GREEDY = {"max_new_tokens": 4, "temperature": 0}
EDGES: dict[str, tuple[str, dict[str, Any]]] = {
    "one token": ("/v1/completions", {"max_tokens": 1}),
    "no token": ("/v1/completions", {"max_tokens": 0, "echo": True}),
    "a prompt of one token": ("/generate", {"input_ids": [5], "sampling_params": GREEDY}),
    "stop string": ("/v1/completions", {"max_tokens": 40, "stop": ["\n"]}),
    "the end first": ("/v1/completions", {"max_tokens": 9, "ignore_eos": False}),
    "a stop token first": ("/v1/completions", {"max_tokens": 9}),
    "choices": ("/v1/completions", {"max_tokens": 8, "n": 3, "temperature": 1, "seed": 3}),
    "echo": ("/v1/completions", {"max_tokens": 4, "echo": True, "logprobs": 1}),
    "penalties": (
        "/v1/completions",
        {"max_tokens": 24, "frequency_penalty": 1.5, "seed": 1, "temperature": 1},
    ),
    "a grammar": ("/v1/completions", {"max_tokens": 24, "regex": "[a-z]+ [0-9]+\\."}),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": LONG}], "max_tokens": 9, "seed": 1},
    ),
    "stream": (
        "/v1/completions",
        {"max_tokens": 24, "seed": 2, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "batch": ("/v1/completions", {"prompt": heldout_prompts(3), "max_tokens": 9}),
    "prompt logprobs": (
        "/generate",
        {
            "text": LONG,
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": GREEDY,
        },
    ),
}
# The decode server computes a prompt with log-probabilities itself. A prompt of one token has no pages.
NO_PAGES = ("a prompt of one token", "echo", "prompt logprobs")
FIRST = ("the end first", "a stop token first")


@pytest.fixture(scope="module")
def first_token(one: ServerProcess) -> int:
    """The first token after LONG, greedily."""
    answer = one.post("/generate", text=LONG, sampling_params=GREEDY).json()
    return int(answer["output_ids"][0])


@pytest.mark.parametrize("edge", EDGES)
def test_edges(pair: TwoServers, one: ServerProcess, first_token: int, edge: str) -> None:
    """Usage, finish reasons and log-probabilities included. The pages came from the prefill server."""
    path, body = EDGES[edge]
    if path == "/v1/completions":
        body = {"prompt": LONG, "temperature": 0, "ignore_eos": True} | body
    if edge == "a stop token first":
        body = body | {"stop_token_ids": [first_token]}
    elif edge == "the end first":
        end = ModelConfig.from_folder(model_folder(EMBEDDED)).eos_token_ids[0]
        body = body | {"logit_bias": {str(end): 100}}
    before, found = pair.transfers(), []
    for server in (one, pair):
        assert server.post("/flush_cache").status_code == 200
        answer = server.post(path, **body)
        assert answer.status_code == 200, answer.text
        found.append(joined(answer.text) if "stream" in body else answer.json())
        for key in ("id", "created"):
            found[-1].pop(key, None)
        meta = found[-1].get("meta_info", {})
        for key in [key for key in meta if key in ("id", "e2e_latency") or key.startswith("spec_")]:
            del meta[key]
    assert found[0] == found[1]
    if edge in FIRST:
        (choice,) = found[1]["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert isinstance(pair.first, httpx.Response)
    assert pair.first.status_code == 200
    until(lambda: pair.transfers()["active"] == 0)
    until(lambda: pair.prefill.metrics()["nextn:num_used_tokens"] == 0)
    now = pair.transfers()
    assert now["fallbacks_total"] == before["fallbacks_total"]
    if edge in NO_PAGES:
        assert now["pages_total"] == before["pages_total"]
    else:
        assert now["pages_total"] > before["pages_total"]
        assert now["finished_total"] > before["finished_total"]


def joined(stream: str) -> dict[str, Any]:
    """The answer of a stream: how its text is divided depends on the time."""
    *lines, last = [line for line in stream.splitlines() if line]
    assert last == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) > 1
    reasons = [choice["finish_reason"] for choice in choices]
    assert set(reasons[:-1]) == {None}
    assert chunks[-1]["choices"] == []
    text = "".join(choice["text"] for choice in choices)
    return {"text": text, "finish_reason": reasons[-1], "usage": chunks[-1]["usage"]}


def test_plain_requests_are_served_whole(pair: TwoServers, one: ServerProcess) -> None:
    body = {"prompt": LONG, "temperature": 0, "max_tokens": 12}
    wanted = one.post("/v1/completions", **body).json()["choices"]
    for server in (pair.prefill, pair.decode):
        assert server.post("/v1/completions", **body).json()["choices"] == wanted


@pytest.mark.parametrize("when", ["pages_total", "finished_total"])
def test_a_client_that_goes_away(pair: TwoServers, when: str) -> None:
    """A gateway closes both of its connections after the first pages have come, and while the answer is
    generated. Both servers end the request."""
    for server in (pair.prefill, pair.decode):
        assert server.post("/flush_cache").status_code == 200
    before = pair.transfers()
    body = {"prompt": LONG * 4, "max_tokens": 1000, "ignore_eos": True} | pair.remote()
    ends = [begin(server, "/v1/completions", body) for server in (pair.decode, pair.prefill)]
    until(lambda: pair.transfers()[when] > before[when])
    for end in ends:
        end.close()
    until(lambda: pair.decode.metrics()["nextn:num_used_tokens"] == 0)
    until(lambda: pair.prefill.metrics()["nextn:num_used_tokens"] == 0)
    until(lambda: pair.transfers()["active"] == 0)


def begin(server: ServerProcess, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which this request was sent, and nothing was read."""
    url = httpx.URL(server.url)
    end = socket.create_connection((url.host, int(url.port or 80)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    end.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return end


def test_a_room_is_asked_for(pair: TwoServers) -> None:
    """Of the prefill server's bootstrap port."""
    room = pair.remote() | {"bootstrap_port": None}
    bootstrap = "http://{bootstrap_host}:{bootstrap_port}".format(**pair.bootstrap)
    route = f"{bootstrap}/route?bootstrap_room={room['bootstrap_room']}"
    info = httpx.get(pair.prefill.url + "/server_info").json()
    assert info["disaggregation_mode"] == "prefill"
    assert info["disaggregation_bootstrap_port"] == pair.bootstrap["bootstrap_port"]
    assert any(f"127.0.0.1:{info['disaggregation_bootstrap_port']}" in line for line in pair.prefill.stdout)
    assert httpx.get(bootstrap + "/health").text == "OK"
    assert httpx.get(route).status_code == 404
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 9, "n": 2, "stop": "a"}}
    prefilled = pair.prefill.post("/generate", **body, **room).json()
    assert (prefilled["output_ids"], prefilled["meta_info"]["finish_reason"]["type"]) == ([], "length")
    found = httpx.get(route).json()
    assert found.pop("port") > 0
    assert found == {"host": "127.0.0.1", "dp_rank": 0, "room": room["bootstrap_room"]}
    assert len(pair.prefill.post("/generate", **body).json()) == 2


def test_a_decode_server_that_dies(pair: TwoServers, one: ServerProcess) -> None:
    """Its requests end in errors; the prefill server keeps no pages for it, and serves the next one."""
    body = {"prompt": LONG, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    text = one.post("/v1/completions", **body).json()["choices"][0]["text"]
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(pair.post("/v1/completions", **(body | {"max_tokens": 1000})).status_code)

    asked = in_background(ask, ask)
    until(lambda: pair.decode.metrics()["nextn:num_running_reqs"] > 0)
    os.kill(pair.decode.engine_pid(), signal.SIGKILL)
    for thread in asked:
        thread.join(60)
    assert 500 in statuses
    until(lambda: pair.prefill.metrics()["nextn:num_used_tokens"] == 0)
    until(lambda: health(pair.decode)[0] == 200, 60)
    before = pair.transfers()["finished_total"]
    assert pair.post("/v1/completions", **body).json()["choices"][0]["text"] == text
    assert pair.transfers()["finished_total"] == before + 1


def test_a_prefill_server_that_dies(pair: TwoServers, one: ServerProcess) -> None:
    """Its engine, which forgets its rooms, and then all of it: no request fails, and no text differs."""
    body = {"prompt": LONG * 4, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    text = one.post("/v1/completions", **body).json()["choices"][0]["text"]
    before, texts = pair.transfers()["fallbacks_total"], list[str]()
    bootstrap = "http://{bootstrap_host}:{bootstrap_port}".format(**pair.bootstrap)
    room = pair.remote()
    pair.prefill.post("/v1/completions", prompt="hello", max_tokens=1, **room)
    route = f"{bootstrap}/route?bootstrap_room={room['bootstrap_room']}"
    assert httpx.get(route).status_code == 200

    def ask() -> None:
        answer = pair.post("/v1/completions", **body)
        texts.append(answer.json()["choices"][0]["text"])

    assert pair.post("/flush_cache").status_code == 200
    engine = pair.prefill.engine_pid()
    os.kill(engine, signal.SIGSTOP)  # so that no transfer has finished when it dies
    asked = in_background(ask, ask, ask)
    until(lambda: pair.transfers()["active"] > 0)
    os.kill(engine, signal.SIGKILL)
    until(lambda: httpx.get(route).status_code in (404, 410))
    for thread in asked:
        thread.join(60)
    assert texts == [text] * 3
    until(lambda: health(pair.prefill)[0] == 200, 60)
    now = pair.transfers()["fallbacks_total"]
    assert now > before
    pair.prefill.kill()
    assert pair.post("/v1/completions", **body).json()["choices"][0]["text"] == text
    assert pair.transfers()["fallbacks_total"] == now + 1


def test_the_bootstrap_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", port)
        server = ServerProcess([*SERVE, *words])
        assert server.wait() == 1
    assert any("choose another --disaggregation-bootstrap-port" in line for line in server.stderr)
