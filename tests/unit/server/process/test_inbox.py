"""The queue of one HTTP request."""

from __future__ import annotations

import asyncio

import pytest

from nextn.request import Output
from nextn.server.process.inbox import Inbox, Update

UPDATES = [Update("r", Output("r", [i], [0])) for i in range(4)]


async def test_all_that_is_there_is_taken_at_once() -> None:
    inbox = Inbox()
    for update in UPDATES:
        inbox.put_nowait(update)
    assert await inbox.take() == UPDATES


async def test_a_reader_who_waits_finds_what_came_until_his_turn() -> None:
    inbox = Inbox()
    reading = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    assert not reading.done()
    for update in UPDATES[:2]:
        inbox.put_nowait(update)
    assert await reading == UPDATES[:2]
    inbox.put_nowait(UPDATES[2])
    assert await inbox.take() == UPDATES[2:3]


async def test_nothing_is_lost_with_a_reader_who_is_cancelled() -> None:
    inbox = Inbox()
    reading = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    inbox.put_nowait(UPDATES[0])
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    inbox.put_nowait(UPDATES[1])
    assert await inbox.take() == UPDATES[:2]
