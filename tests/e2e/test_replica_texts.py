"""Replicas of the embedded model, each of several ranks: texts, log-probabilities and acceptance are
those of one engine, wherever a request goes, and whoever dies beside it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from support.all_cases import ALL_CASES, few_or_all
from support.native_kernels import built_levels
from support.processes import family, runs
from support.server_process import ServerProcess, check_ended, in_background, until
from support.two_replicas import (
    ENDLESS,
    SERVE,
    Answers,
    answers,
    by_rank,
    check_answers,
    health,
    post,
    prompt_tokens,
)

from nextn.bench.prompts import heldout_prompts

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

LONG = {"prompt": heldout_prompts(1)[0], "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def expected() -> Answers:
    with ServerProcess(SERVE) as one:
        assert one.metrics()["nextn:rank_wait_seconds_total"] == 0
        return answers(one)


@pytest.fixture(scope="module", params=few_or_all([2], [4]))
def replicas(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Each of so many ranks. At the end no process is left."""
    with ServerProcess([*SERVE, "--dp-size", "2", "--tp-size", str(request.param)]) as server:
        yield server
        server.process.terminate()
        check_ended(server, 0)


def test_answers_are_those_of_one_engine(replicas: ServerProcess, expected: Answers) -> None:
    check_answers(replicas, expected)


def test_a_beginning_that_is_found_again(replicas: ServerProcess) -> None:
    """With `prefix`, the default, on the replica that knows it; the answer is the same."""
    assert post(replicas, "/flush_cache").status_code == 200
    prefixes = [f"# {letter * 9}\n" + f"def {letter}(x):\n    return x\n\n\n" * 10 for letter in "abcd"]
    before = prompt_tokens(replicas)
    cached, shown = [], []
    for again in (0, 1, 1):
        for prefix in prefixes:
            answer = post(
                replicas, prompt=f"{prefix}# {again}\n", max_tokens=6, temperature=0, logprobs=2
            ).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            shown.append(answer["choices"])
    assert max(cached[:4]) < 32
    assert min(cached[4:]) >= 64
    assert shown[4:8] == shown[8:]
    assert all(now > was for was, now in zip(before, prompt_tokens(replicas), strict=True))


def test_what_a_server_says_of_ranks_in_replicas(replicas: ServerProcess) -> None:
    assert all(seconds > 0 for seconds in by_rank(replicas, "nextn:rank_wait_seconds_total"))
    info = httpx.get(replicas.url + "/server_info").json()
    others = [len(replicas.tensor_ranks(engine)) for engine in replicas.engine_pids()]
    assert info["dp_size"] == 2
    assert others == [info["tp_size"] - 1] * 2


@pytest.mark.skipif(
    not ALL_CASES, reason="a rank of a group: test_groups.py; one replica of two: test_server_replicas.py"
)
def test_a_rank_of_a_replica_is_killed(replicas: ServerProcess) -> None:
    """Requests of its replica fail, streams of the other do not notice, and nothing is left of it."""
    server = replicas
    engine = server.engine_pids()[1]
    dead, rank = family(engine), server.tensor_ranks(engine)[-1]
    failed: list[httpx.Response] = []
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=LONG | {"stream": True, "routed_dp_rank": 0}, timeout=60
    ) as stream:
        events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {"))
        said = next(events)["choices"][0]["text"]
        (other,) = in_background(lambda: failed.append(post(server, **ENDLESS, routed_dp_rank=1)))
        until(lambda: by_rank(server, "nextn:num_running_reqs")[1] > 0)
        os.kill(rank, signal.SIGKILL)
        other.join()
        assert (failed[0].status_code, failed[0].json()["error"]["code"]) == (500, "engine_dead")
        text = said + "".join(event["choices"][0]["text"] for event in events)
    until(lambda: health(server) == (200, {"status": "ok"}), seconds=60)
    until(lambda: not any(map(runs, dead)))
    assert by_rank(server, "nextn:engine_restarts_total") == [0, 1]
    assert post(server, **LONG, routed_dp_rank=1).json()["choices"][0]["text"] == text
