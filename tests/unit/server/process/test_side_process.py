"""Calls in another process: what they return and raise, and what becomes of the process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support import side_calls

from nextn.server.process.side_process import NICE, SideProcess
from nextn.server.protocol.errors import ApiError


@pytest.fixture(scope="module")
def side() -> SideProcess:
    return SideProcess()


async def test_calls(side: SideProcess) -> None:
    assert side.pid is None
    assert await side.call(side_calls.length, bytearray(3_000_000), "a", [1]) == (3_000_000, ("a", [1]))
    assert await side.call(side_calls.length, b"") == (0, ())
    half = "x" * 1_000_000 + "\ud800é"
    assert await side.call(side_calls.text, half.encode(errors="surrogatepass")) == half


async def test_it_is_one_process_behind_all_others(side: SideProcess) -> None:
    (pid, nice), (other, _) = [await side.call(side_calls.own, b"") for _ in range(2)]
    assert pid == other == side.pid
    assert pid != os.getpid()
    assert nice == min(19, os.nice(0) + NICE)


async def test_the_loop_goes_on_meanwhile(side: SideProcess, tmp_path: Path) -> None:
    """The call ends only by what the loop does while it runs."""
    there = tmp_path / "there"
    first = asyncio.create_task(side.call(side_calls.wait, b"", there))
    second = asyncio.create_task(side.call(side_calls.length, b"x"))
    while side.pid is None:
        await asyncio.sleep(0.01)
    assert not first.done()
    assert not second.done()  # one after the other
    there.touch()
    await first
    assert await second == (1, ())


async def test_errors_are_those_of_the_call(side: SideProcess) -> None:
    with pytest.raises(ApiError) as here:
        side_calls.refuse(b"")
    with pytest.raises(ApiError, match="no such thing") as there:
        await side.call(side_calls.refuse, b"")
    assert vars(there.value) == vars(here.value)
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'"):
        await side.call(side_calls.fail, b"")


async def test_a_process_that_dies_is_replaced(side: SideProcess) -> None:
    with pytest.raises(ApiError) as error:
        await side.call(side_calls.die, b"")
    assert (error.value.status, error.value.code) == (503, "body_not_read")
    assert await side.call(side_calls.length, b"x") == (1, ())


async def test_an_idle_process_ends() -> None:
    side = SideProcess(idle=0.01)
    (first, _) = await side.call(side_calls.own, b"")
    while side.pid is not None:
        await asyncio.sleep(0.01)
    (second, _) = await side.call(side_calls.own, b"")
    assert first != second
