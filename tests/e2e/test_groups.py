"""Groups of --enable-dp-attention on the embedded model, each of two ranks: texts, log-probabilities and
acceptance are those of one engine, whichever group a request goes to; and when a rank of one group is gone,
all end and serve again. (Who shares experts with whom: test_groups_identity.py. Groups of one process:
test_disaggregation.py and test_server_experts.py. Many more kills: benchmarks/kill_ranks.py --groups.)"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.native_kernels import built_levels
from support.processes import family, runs
from support.server_process import ServerProcess, check_ended, in_background, until
from support.two_replicas import (
    CASES,
    ENDLESS,
    SERVE,
    Answers,
    answer,
    answers,
    by_rank,
    check_answers,
    health,
    post,
)

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

SHM = Path("/dev/shm")
RESTARTS = "nextn:engine_restarts_total"


def together(server: ServerProcess) -> list[Any]:
    """The choices of requests that are in the server together: what is drafted of them depends on who else is
    there."""
    found: dict[tuple[str, int], list[Any]] = {}

    def call(case: tuple[str, int]) -> Callable[[], None]:
        return lambda: found.update({case: answer(server, case)[0]})

    for thread in in_background(*map(call, CASES)):
        thread.join(120)
    return [found.get(case) for case in CASES]


@pytest.fixture(scope="module")
def expected() -> Answers:
    with ServerProcess(SERVE) as one:
        return answers(one)


@pytest.fixture(scope="module")
def groups() -> Iterator[ServerProcess]:
    """At the end no process is left, and nothing in the memory that processes share by name."""
    before = set(SHM.glob("*"))
    ranks = ("--tp-size", "4", "--dp-size", "2", "--enable-dp-attention", "--ep-size", "2")
    with ServerProcess([*SERVE, *ranks, "--overlap-schedule", "on"]) as server:
        yield server
        server.process.terminate()
        check_ended(server, 0)
    assert set(SHM.glob("*")) <= before


def test_answers_are_those_of_one_engine(groups: ServerProcess, expected: Answers) -> None:
    assert together(groups) == [choices for choices, _ in expected]
    check_answers(groups, expected)


def test_a_rank_that_is_killed(groups: ServerProcess, expected: Answers) -> None:
    """In the second group, while only the first has requests. They end in errors, all engines are started
    again, and nothing of the old ones is left."""
    until(lambda: not any(by_rank(groups, "nextn:num_running_reqs")))
    engines = groups.engine_pids()
    before, restarts = set().union(*map(family, engines)), by_rank(groups, RESTARTS)
    failed: list[httpx.Response] = []
    (asked,) = in_background(lambda: failed.append(post(groups, **ENDLESS, routed_dp_rank=0)))
    until(lambda: [n > 0 for n in by_rank(groups, "nextn:num_running_reqs")] == [True, False])
    os.kill(groups.tensor_ranks(engines[1])[0], signal.SIGKILL)
    asked.join(60)
    assert [answer.status_code for answer in failed] == [500]
    assert failed[0].json()["error"]["code"] == "engine_dead"
    until(lambda: by_rank(groups, RESTARTS) > restarts, seconds=60)
    until(lambda: health(groups) == (200, {"status": "ok"}), seconds=60)
    until(lambda: not any(map(runs, before)))
    assert together(groups) == [choices for choices, _ in expected]
