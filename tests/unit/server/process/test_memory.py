"""Memory of large requests is given back, at a server that has little to give back less and less often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from nextn.server.process import memory

MIB = 2**20


async def watched(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], frees: Callable[[int], int]
) -> tuple[list[int], list[float]]:
    """MiB that the process has at each check -> those that it trims at, and the seconds between checks. A
    trim leaves what `frees` says."""
    now, trims, waits, left = [0], list[int](), list[float](), iter(sizes)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if (size := next(left, None)) is None:
            raise asyncio.CancelledError
        now[0] = size

    def trim(_: int) -> int:
        trims.append(now[0])
        now[0] = frees(now[0])
        return 1

    async def at_once(call: Callable[[int], int], value: int) -> int:
        return call(value)

    monkeypatch.setattr(memory, "malloc_trim", lambda: trim)
    monkeypatch.setattr(memory, "resident", lambda: now[0] * MIB)
    monkeypatch.setattr(memory.asyncio, "sleep", sleep)
    monkeypatch.setattr(memory.asyncio, "to_thread", at_once)
    now[0] = 100
    with contextlib.suppress(asyncio.CancelledError):
        await memory.trim_periodically(5.0, 32 * MIB)
    return trims, waits


async def test_what_grew_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, waits = await watched(monkeypatch, [110, 131, 133, 101, 2000, 100], lambda size: 100)
    assert trims == [133, 2000]
    assert set(waits) == {5.0}


async def test_where_that_frees_little_it_is_tried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    trims, waits = await watched(monkeypatch, [500] * 6 + [100], lambda size: size - 1)
    assert trims == [500] * 6
    assert waits == [5.0, 10.0, 20.0, 40.0, 40.0, 40.0, 40.0, 5.0]


async def test_where_the_c_library_cannot_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "malloc_trim", lambda: None)
    await memory.trim_periodically()
