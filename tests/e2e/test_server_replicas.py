"""Several engines behind one port: where requests go, and what a death does. (Texts: test_replica_texts.py.
One that cannot start: tests/unit/server/process/test_supervisors.py.)"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
from support.server_process import (
    RUNNING,
    SCRIPTED,
    USED,
    ServerProcess,
    check_ended,
    in_background,
    until,
)
from support.two_replicas import by_rank, health, idle, post, prompt_tokens

from nextn.cli import main

StartServer = Callable[..., ServerProcess]
TWO = ("--dp-size", "2", "--device", "cpu")  # cpu: nobody imports torch to look for GPUs
LONG = {"prompt": "x", "max_tokens": 900, "temperature": 0}


@pytest.fixture(scope="module")
def pair(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    options = ("--port", "0", *TWO, "--load-balance-method", "round_robin")
    with ServerProcess([SCRIPTED, *options], {"SCRIPT_TOKENIZER": str(tokenizer_folder)}) as server:
        yield server


def test_what_a_server_says_of_its_replicas(pair: ServerProcess) -> None:
    assert next(line for line in pair.stdout if "replicas" in line).split()[:3] == ["replicas", "2,", "each"]
    assert pair.stdout[-1].endswith(" on 2 replicas)")
    assert sum(line.strip().startswith("kv tokens") for line in pair.stdout) == 1
    assert len(pair.engine_pids()) == 2
    info = httpx.get(pair.url + "/server_info").json()
    assert (info["dp_size"], info["load_balance_method"]) == (2, "round_robin")
    assert len(info["internal_states"]) == 2
    loads = httpx.get(pair.url + "/v1/loads").json()["loads"]
    assert [(load["dp_rank"], load["engine_up"]) for load in loads] == [(0, True), (1, True)]
    (one,) = httpx.get(pair.url + "/v1/loads?dp_rank=1").json()["loads"]
    assert one["dp_rank"] == 1
    assert [load["dp_rank"] for load in httpx.get(pair.url + "/get_load").json()] == [0, 1]
    assert health(pair) == (200, {"status": "ok"})
    assert httpx.get(pair.url + "/health_generate").status_code == 200


def test_round_robin_alternates(pair: ServerProcess) -> None:
    before = prompt_tokens(pair)
    for i in range(6):
        assert post(pair, prompt="x" * 10, max_tokens=1, seed=i).status_code == 200
    after = prompt_tokens(pair)
    assert after[0] - before[0] == after[1] - before[1] > 0


def test_choices_of_one_prompt_stay_together(pair: ServerProcess) -> None:
    before = prompt_tokens(pair)
    assert len(post(pair, prompt="abc", n=4, max_tokens=2).json()["choices"]) == 4
    grown = [now - was for was, now in zip(before, prompt_tokens(pair), strict=True)]
    assert sorted(map(bool, grown)) == [False, True]
    answers = post(pair, prompt=["abc", "abcd", "abcde", "abcdef"], max_tokens=2).json()["choices"]
    assert [choice["index"] for choice in answers] == [0, 1, 2, 3]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_client_chooses_the_replica(pair: ServerProcess, rank: int) -> None:
    before = prompt_tokens(pair)
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    native = {"text": ["x", "y"], "sampling_params": {"max_new_tokens": 1}}
    for name in ("routed_dp_rank", "data_parallel_rank"):
        post(pair, prompt="x", max_tokens=1, **{name: rank}).raise_for_status()
        post(pair, "/v1/chat/completions", **chat, **{name: rank}).raise_for_status()
        post(pair, "/generate", **native, **{name: rank}).raise_for_status()
    header = {"X-Data-Parallel-Rank": str(rank)}
    body = {"prompt": "x", "max_tokens": 1}
    httpx.post(pair.url + "/v1/completions", json=body, headers=header).raise_for_status()
    after = prompt_tokens(pair)
    assert after[1 - rank] == before[1 - rank]
    assert after[rank] > before[rank]
    refused = post(pair, prompt="x", routed_dp_rank=2)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "routed_dp_rank")
    assert "routed_dp_rank is 2; the replicas are 0 to 1" in refused.json()["error"]["message"]


def test_commands_reach_all(pair: ServerProcess) -> None:
    assert post(pair, "/set_internal_state", server_args={"speculative_num_steps": 1}).json() == [True, True]
    for rank in (0, 1):
        body = {"text": "x", "sampling_params": {"max_new_tokens": 8}, "routed_dp_rank": rank}
        assert post(pair, "/generate", **body).json()["meta_info"]["spec_accept_length"] == 2
    assert post(pair, "/set_internal_state", server_args={"speculative_num_steps": None}).status_code == 200
    assert post(pair, "/flush_cache").status_code == 200


def test_top_adds_replicas_up(pair: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    generated = sum(by_rank(pair, "nextn:prompt_tokens_total"))
    assert main(["top", "--once", "--base-url", pair.url]) == 0
    out = capsys.readouterr().out
    assert f"of {generated:,.0f} prompt tokens" in out
    assert "of 8,192 tokens" in out  # 4,096 each


@pytest.fixture(scope="module")
def slow_pair(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    """Steps of 50 ms. Its last test ends it."""
    environment = {"SCRIPT_TOKENIZER": str(tokenizer_folder), "SCRIPT_STEP": "0.05"}
    with ServerProcess([SCRIPTED, "--port", "0", *TWO], environment) as server:
        yield server


def test_a_client_that_leaves_frees_pages_where_they_are(slow_pair: ServerProcess) -> None:
    server = slow_pair
    body = LONG | {"stream": True, "routed_dp_rank": 1}
    with httpx.stream("POST", server.url + "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        used = by_rank(server, USED)
        assert used[0] == 0 < used[1]
    until(lambda: idle(server))
    (running,) = in_background(lambda: post(server, **LONG, rid="mine"))
    until(lambda: sum(by_rank(server, RUNNING)) == 1)
    assert post(server, "/abort_request", rid="mine").status_code == 200
    running.join()
    until(lambda: idle(server))


def test_one_replica_killed_under_load(slow_pair: ServerProcess) -> None:
    server = slow_pair
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    streams = [
        client.completions.create(
            model="scripted", prompt="x", max_tokens=200, temperature=0, stream=True,
            extra_body={"routed_dp_rank": rank},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for stream in streams:
        next(stream)
    assert by_rank(server, RUNNING) == [1, 1]
    generated = by_rank(server, "nextn:generation_tokens_total")[0]
    os.kill(server.engine_pids()[0], signal.SIGKILL)
    with pytest.raises(openai.APIError, match="the engine died"):
        list(streams[0])
    assert health(server) == (200, {"status": "ok", "dp_ranks_down": [0]})
    loads = httpx.get(server.url + "/v1/loads").json()["loads"]
    assert [load["engine_up"] for load in loads] == [False, True]
    refused = post(server, **LONG, routed_dp_rank=0)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "replica 0 is not running" in refused.json()["error"]["message"]
    for _ in range(3):  # all go to the other
        assert post(server, prompt="x", max_tokens=3).status_code == 200
    finished = [chunk.choices[0].finish_reason for chunk in streams[1] if chunk.choices][-1]
    assert finished == "length"
    until(lambda: health(server) == (200, {"status": "ok"}))
    assert post(server, prompt="x", max_tokens=6, routed_dp_rank=0).status_code == 200
    assert by_rank(server, "nextn:generation_tokens_total")[0] >= generated + 6
    assert by_rank(server, "nextn:engine_restarts_total") == [1, 0]
    said = [line for line in server.stderr if "engine" in line]
    assert any("[dp0] the engine process ended (signal 9); its requests fail" in line for line in said)
    assert any("[dp0] the engine is ready again" in line for line in said)
    assert not any("[dp1]" in line for line in said)


def test_shutdown_drains_all(slow_pair: ServerProcess) -> None:
    server = slow_pair
    answers: list[httpx.Response] = []

    def ask(rank: int) -> None:
        answers.append(post(server, **LONG | {"max_tokens": 60, "routed_dp_rank": rank}))

    running = in_background(lambda: ask(0), lambda: ask(1))
    until(lambda: by_rank(server, RUNNING) == [1, 1])
    server.interrupt()
    until(lambda: health(server)[0] == 503)
    for thread in running:
        thread.join()
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [60, 60]
    check_ended(server, 130)


def test_replicas_that_die_too_often(start: StartServer) -> None:
    """The first stays down, with the last the server ends."""
    server = start(*TWO, "--max-engine-restarts", "0").wait_ready()
    first, second = server.engine_pids()
    os.kill(second, signal.SIGKILL)
    until(lambda: any("replica 1 stays down: " in line for line in server.stderr))
    assert health(server) == (200, {"status": "ok", "dp_ranks_down": [1]})
    assert post(server, prompt="x", max_tokens=3).status_code == 200
    os.kill(first, signal.SIGKILL)
    assert server.wait() == 1
    assert any("; the server ends" in line for line in server.stderr)
    until(lambda: server.session() == [])


def test_a_second_interrupt_ends_all_at_once(start: StartServer) -> None:
    server = start(*TWO, SCRIPT_STEP="0.05").wait_ready()
    with httpx.stream("POST", server.url + "/v1/completions", json=LONG | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.interrupt()
        until(lambda: health(server)[0] == 503)
        server.interrupt()
        assert server.wait() == 130
    check_ended(server, 130)


def test_engines_end_with_a_server_that_is_killed(pair: ServerProcess) -> None:
    """The last of `pair`."""
    os.kill(pair.process.pid, signal.SIGKILL)
    until(lambda: pair.session() == [])
