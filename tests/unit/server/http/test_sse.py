"""Event streams on the wire, and answers whose client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from nextn.server.http.sse import DONE, ClientGone, EventStream, event, unless_gone
from nextn.server.protocol.errors import ApiError, bad_request, engine_dead


async def connected() -> MutableMapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def disconnected() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


async def sent_by(stream: EventStream, receive: Any) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    await (await stream.start())({}, receive, send)
    return sent


async def test_events_and_done() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b'{"a":1}'
        yield b'{"b":2}'

    start, *parts = await sent_by(EventStream(chunks()), connected)
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert b"content-length" not in headers
    assert [p["body"] for p in parts] == [b'data: {"a":1}\n\n', b'data: {"b":2}\n\n', DONE]
    assert [p["more_body"] for p in parts] == [True, True, False]


async def test_error_after_the_first_chunk_is_an_event() -> None:
    error = engine_dead("gone")

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"1"
        raise error

    bodies = [p["body"] for p in (await sent_by(EventStream(chunks()), connected))[1:]]
    assert bodies == [event(b"1"), event(error.body), DONE]


async def test_error_before_the_first_chunk_is_raised() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        raise bad_request("no")
        yield b""

    with pytest.raises(ApiError, match="no"):
        await EventStream(chunks()).start()


async def test_disconnect_closes_the_chunks() -> None:
    closed = False

    async def chunks() -> AsyncGenerator[bytes, None]:
        nonlocal closed
        try:
            yield b"1"
            await asyncio.Event().wait()
        finally:
            closed = True

    sent = await sent_by(EventStream(chunks()), disconnected)
    assert closed
    assert not any(part.get("more_body") is False for part in sent)


async def test_unless_gone() -> None:
    async def quick() -> int:
        return 5

    async def wrong() -> int:
        raise ValueError("wrong")

    cancelled = False

    async def endless() -> int:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled = True
        return 0

    assert await unless_gone(connected, quick()) == 5
    with pytest.raises(ValueError, match="wrong"):
        await unless_gone(connected, wrong())
    with pytest.raises(ClientGone):
        await unless_gone(disconnected, endless())
    assert cancelled
