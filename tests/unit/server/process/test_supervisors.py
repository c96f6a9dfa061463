"""Engine processes together. What becomes of requests: tests/e2e/test_server_replicas.py."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import make_engine
from nextn.server.process.messages import Ready
from nextn.server.process.supervisor import StartupError
from nextn.server.process.supervisors import Supervisors
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats


class Handle:
    """Of a process that is ready, or that cannot start."""

    channel: Any = None

    def __init__(self, error: StartupError | None = None) -> None:
        self.error, self.process = error, self

    async def ready(self) -> Ready:
        if self.error is not None:
            raise self.error
        return Ready(258, 1024, 2, {}, EngineStats())

    def kill(self) -> None:
        """Of the process, and of the handle."""


def supervisors(count: int) -> Supervisors:
    clients = [EngineClient(rank=rank) for rank in range(count)]
    return Supervisors(ServerConfig(dp_size=count, threads=3), clients, make_engine)


async def test_all_serve_when_all_are_ready() -> None:
    made = supervisors(2)
    assert len(await made.ready([[Handle()], [Handle()]])) == 2  # type: ignore[list-item]
    assert all(client.ready is not None for each in made.each for client in each.clients)


async def test_one_that_cannot_start() -> None:
    made = supervisors(2)
    with pytest.raises(StartupError, match="no good"):
        await made.ready([[Handle()], [Handle(StartupError("no good"))]])  # type: ignore[list-item]
    assert all(client.ready is None for each in made.each for client in each.clients)


async def test_the_server_ends_with_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    made = supervisors(3)
    ends = [asyncio.Event() for _ in made.each]
    for i, supervisor in enumerate(made.each):

        async def run(handle: object, i: int = i) -> None:
            await ends[i].wait()
            raise StartupError(f"engine {i} ended again")

        supervisor.run = run  # type: ignore[method-assign]
    running = asyncio.ensure_future(made.run([[Handle()]] * 3))  # type: ignore[list-item]
    with caplog.at_level(logging.ERROR):
        for i in (1, 0):
            ends[i].set()
            await asyncio.sleep(0.01)
    assert not running.done()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"replica {i} stays down: engine {i} ended again; the others go on" for i in (1, 0)]
    ends[2].set()
    with pytest.raises(StartupError, match="engine 2 ended again; the server ends"):
        await running


async def test_a_bug_is_no_reason_to_go_on() -> None:
    made = supervisors(2)

    async def run(handle: object) -> None:
        raise RuntimeError("a bug")

    async def forever(handle: object) -> None:
        await asyncio.Event().wait()

    made.each[0].run, made.each[1].run = run, forever  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        await made.run([[Handle()], [Handle()]])  # type: ignore[list-item]


def test_each_has_its_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.server_config.usable_cores", lambda: 7)
    assert [ServerConfig(dp_size=n).of_replica().threads for n in (1, 2, 3, 16)] == [None, 3, 2, 1]
    assert ServerConfig(dp_size=2, threads=5).of_replica().threads == 5
