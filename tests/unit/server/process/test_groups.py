"""Engines of groups that share the experts: they start, die and end together. The processes are real, the
engines scripted."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.processes import children
from support.scripted_groups import make
from support.small_tokenizer import write_small_tokenizer

from nextn.request import Output, SamplingParams
from nextn.server.process import supervisor
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.inbox import Update
from nextn.server.process.messages import NewRequest, Tokens
from nextn.server.process.supervisor import StartupError
from nextn.server.process.supervisors import Supervisors
from nextn.server.protocol.errors import ApiError
from nextn.server_config import ServerConfig

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerConfig:
    folder = write_small_tokenizer(tmp_path)
    monkeypatch.setenv("SCRIPT_TOKENIZER", str(folder))
    monkeypatch.setenv("SCRIPT_STEP", "0.01")
    monkeypatch.setattr(supervisor, "FIRST_DELAY", 0.01)
    return ServerConfig(
        str(folder),
        tp_size=2,
        dp_size=2,
        enable_dp_attention=True,
        device="cpu",
        threads=1,
        grammar_backend="none",
    )


class Groups:
    def __init__(self, config: ServerConfig) -> None:
        self.clients = [EngineClient(rank=rank) for rank in range(2)]
        self.supervisors = Supervisors(config, self.clients, make)

    @property
    def pids(self) -> list[int]:
        (gang,) = self.supervisors.each
        return [handle.process.pid for handle in gang.handles]

    def kill(self, group: int) -> None:
        (gang,) = self.supervisors.each
        gang.handles[group].process.kill()

    def ask(self, group: int, tokens: int) -> asyncio.Queue[Update]:
        queue: asyncio.Queue[Update] = asyncio.Queue()
        params = SamplingParams(max_tokens=tokens, temperature=0)
        self.clients[group].submit([NewRequest(f"{group}", [9, 9], params)], queue)
        return queue


@contextlib.asynccontextmanager
async def serving(config: ServerConfig) -> AsyncIterator[tuple[Groups, asyncio.Task[None]]]:
    groups = Groups(config)
    handles = groups.supervisors.launch()
    try:
        assert len(await groups.supervisors.ready(handles)) == 2
        keeping = asyncio.create_task(groups.supervisors.run(handles))
        yield groups, keeping
        keeping.cancel()
        await asyncio.wait({keeping})
    finally:
        await groups.supervisors.stop()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def last(queue: asyncio.Queue[Update]) -> Output | ApiError:
    while True:
        what = (await asyncio.wait_for(queue.get(), 60)).what
        if isinstance(what, ApiError) or (isinstance(what, Output) and what.finish_reason):
            return what


@pytest.mark.parametrize("killed", [0, 1])
async def test_when_one_dies_all_start_again(
    config: ServerConfig, killed: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(config) as (groups, keeping):
        before = groups.pids
        queues = [groups.ask(group, 900) for group in (0, 1)]
        for queue in queues:
            assert isinstance((await queue.get()).what, Tokens)
        with caplog.at_level(logging.INFO):
            groups.kill(killed)
            for queue in queues:
                error = await last(queue)
                assert isinstance(error, ApiError)
                assert "the engine died" in str(error)
            assert all(client.ready is None for client in groups.clients)
            await until(lambda: all(client.ready is not None for client in groups.clients))
        assert [record.getMessage() for record in caplog.records if record.name == "nextn.server"] == [
            "the engine process ended (signal 9); all groups end, and their requests fail",
            "the engines are started again in 0.0 s",
            "the engines are ready again",
        ]
        assert not set(before) & {*groups.pids, *children(os.getpid())}
        assert [client.metrics.restarts for client in groups.clients] == [1, 1]
        for group in (0, 1):
            assert isinstance(await last(groups.ask(group, 5)), Output)
        assert not keeping.done()


async def test_too_many_restarts(config: ServerConfig) -> None:
    """All of them together count as one."""
    async with serving(dataclasses.replace(config, max_engine_restarts=1)) as (groups, keeping):
        groups.kill(0)
        await until(lambda: groups.clients[0].metrics.restarts == 1)
        await until(lambda: all(client.ready is not None for client in groups.clients))
        groups.kill(1)
        with pytest.raises(StartupError, match="the engines ended again after 1 restarts in 10 minutes"):
            await asyncio.wait_for(keeping, 60)
        assert not set(groups.pids) & set(children(os.getpid()))


async def test_one_that_cannot_start_ends_the_others(
    config: ServerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    obstacle = tmp_path / "obstacle"
    monkeypatch.setenv("GROUP_FAIL", f"1 {obstacle}")
    obstacle.touch()
    groups = Groups(config)
    handles = groups.supervisors.launch()
    with pytest.raises(StartupError, match="group 1 is no good"):
        await groups.supervisors.ready(handles)
    assert not set(groups.pids) & set(children(os.getpid()))
    await groups.supervisors.stop()
    obstacle.unlink()
    async with serving(config) as (groups, _):
        obstacle.touch()
        groups.kill(0)
        await until(lambda: "the engines do not start again: group 1 is no good" in caplog.text)
        obstacle.unlink()
        await until(lambda: all(client.ready is not None for client in groups.clients))
        assert isinstance(await last(groups.ask(1, 5)), Output)


async def test_stop_leaves_nothing(config: ServerConfig) -> None:
    async def once() -> tuple[list[int | None], int]:
        async with serving(config) as (groups, _):
            (gang,) = groups.supervisors.each
            running = set(children(os.getpid()))
            assert running >= set(groups.pids)
        assert set(children(os.getpid())) == running - set(groups.pids)
        ended = [handle.process.exitcode for handle in gang.handles]
        del gang, groups  # a process that has ended keeps two files until nobody knows it any more
        gc.collect()
        return ended, len(os.listdir("/proc/self/fd"))

    _, files = await once()  # with what is started once for all: multiprocessing's tracker
    assert await once() == ([0, 0], files)  # 0: they were asked to end
