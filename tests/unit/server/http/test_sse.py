"""Event streams on the wire, and answers whose client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from typing import Any

import pytest

from nextn.server.http.sse import DONE, ClientGone, EarlyAnswer, EventStream, event, unless_gone
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


class Accepted:
    """A prefill server's answer, and what is sent of it."""

    def __init__(self, *chunks: bytes | ApiError, stream: bool = False) -> None:
        self.go, self.left, self.ended = asyncio.Event(), asyncio.Event(), False
        self.sent: list[MutableMapping[str, Any]] = []
        self.answer = EarlyAnswer(self.work(chunks), stream)

    async def work(self, chunks: Sequence[bytes | ApiError]) -> AsyncGenerator[bytes, None]:
        try:
            await self.go.wait()
            for chunk in chunks:
                if isinstance(chunk, ApiError):
                    raise chunk
                yield chunk
        finally:
            self.ended = True

    async def receive(self) -> MutableMapping[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    async def call(self) -> None:
        await self.answer({"type": "http"}, self.receive, self.send)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_status_goes_out_before_the_answer(stream: bool) -> None:
    accepted = Accepted(b"{}", stream=stream)
    await accepted.answer.start()
    calling = asyncio.create_task(accepted.call())
    await asyncio.sleep(0)
    assert [message["status"] for message in accepted.sent] == [200]
    kind = dict(accepted.sent[0]["headers"])[b"content-type"]
    assert kind.startswith(b"text/event-stream" if stream else b"application/json")
    assert b"content-length" not in dict(accepted.sent[0]["headers"])
    accepted.go.set()
    await calling
    assert accepted.body == (b"data: {}\n\ndata: [DONE]\n\n" if stream else b"{}")
    assert (accepted.sent[-1]["more_body"], accepted.ended) == (False, True)


async def test_what_is_refused_at_once_has_a_status() -> None:
    refused = Accepted(bad_request("no"))
    refused.go.set()
    with pytest.raises(ApiError, match="no"):
        await refused.answer.start()


async def test_a_later_error_is_the_answer() -> None:
    failed = Accepted(bad_request("no"))
    await failed.answer.start()
    failed.go.set()
    await failed.call()
    assert b'"message":"no"' in failed.body


async def test_a_gateway_that_leaves() -> None:
    accepted = Accepted(b"{}")
    await accepted.answer.start()
    accepted.left.set()
    await accepted.call()
    assert accepted.ended
    starting = Accepted(b"{}")
    task = asyncio.create_task(starting.answer.start())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert starting.ended
