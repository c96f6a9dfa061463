"""Groups of --enable-dp-attention on the embedded model, each one process or two ranks: texts,
log-probabilities and acceptance are those of one engine, whichever group a request goes to; and when a
process of one group is gone, all end and serve again. (Who shares experts with whom:
test_groups_identity.py. Many more kills: benchmarks/kill_ranks.py --groups.)"""

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


def served(*options: str) -> Iterator[ServerProcess]:
    """At the end no process is left, and nothing in the memory that processes share by name."""
    before = set(SHM.glob("*"))
    with ServerProcess(
        [*SERVE, *options, "--max-engine-restarts", "100", "--dp-size", "2", "--enable-dp-attention"]
    ) as server:
        yield server
        server.process.terminate()
        check_ended(server, 0)
    assert set(SHM.glob("*")) <= before


@pytest.fixture(scope="module")
def pair() -> Iterator[ServerProcess]:
    yield from served("--tp-size", "2", "--ep-size", "2", "--overlap-schedule", "on")


@pytest.fixture(scope="module")
def pair_of_ranks() -> Iterator[ServerProcess]:
    yield from served("--tp-size", "4", "--ep-size", "2")


@pytest.fixture(params=["pair", "pair_of_ranks"])
def groups(request: pytest.FixtureRequest) -> ServerProcess:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ServerProcess)
    return found


def test_answers_are_those_of_one_engine(groups: ServerProcess, expected: Answers) -> None:
    assert together(groups) == [choices for choices, _ in expected]
    check_answers(groups, expected)


def victim(server: ServerProcess, which: str) -> int:
    """A process of the second group."""
    engine = server.engine_pids()[1]
    return engine if which == "engine" else server.tensor_ranks(engine)[0]


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
GONE = [
    ("pair", "engine", "idle", STOP),
    ("pair_of_ranks", "rank", "beside", KILL),
]


@pytest.mark.parametrize("case", GONE, ids=lambda case: "-".join(map(str, case)))
def test_a_process_that_is_gone(
    request: pytest.FixtureRequest, expected: Answers, case: tuple[str, str, str, int]
) -> None:
    """Requests of all groups end in errors, all engines are started again, nothing of the old ones is left.
    beside: only the other group has requests."""
    servers, which, when, how = case
    server: ServerProcess = request.getfixturevalue(servers)
    until(lambda: not any(by_rank(server, "nextn:num_running_reqs")))
    before, restarts = set().union(*map(family, server.engine_pids())), by_rank(server, RESTARTS)
    failed: list[httpx.Response] = []

    def ask(group: int) -> Callable[[], None]:
        return lambda: failed.append(post(server, **ENDLESS, routed_dp_rank=group))

    busy = {"idle": [], "beside": [0]}[when]
    asked = in_background(*map(ask, busy))
    wanted = [g in busy for g in range(2)]
    until(lambda: [n > 0 for n in by_rank(server, "nextn:num_running_reqs")] == wanted)
    os.kill(victim(server, which), how)
    for thread in asked:
        thread.join(60)
    assert [answer.status_code for answer in failed] == [500] * len(busy)
    assert {answer.json()["error"]["code"] for answer in failed} <= {"engine_dead"}
    until(lambda: by_rank(server, RESTARTS) > restarts, seconds=60)
    until(lambda: health(server) == (200, {"status": "ok"}), seconds=60)
    until(lambda: not any(map(runs, before)))
    assert together(server) == [choices for choices, _ in expected]
