"""Sends answers: as server-sent events, or as one JSON body in pieces. Work on an answer ends when its client
leaves. It uses ASGI directly, without a task group for each chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nextn.server.http.middleware import DIRECT
from nextn.server.protocol.errors import ApiError
from nextn.trace import TRACE

EARLY_SECONDS = 0.02  # most requests that an engine refuses are refused within this time
DONE = b"data: [DONE]\n\n"
PIECE = 1 << 18  # bytes per piece of a whole answer
Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def event(data: bytes) -> bytes:
    """One event. `data` is JSON, which escapes line breaks, so it fits on one line."""
    return b"data: " + data + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of `work`. Cancels it and raises ClientGone when the client disconnects.

    The request's body must have been read, so that the next message can only be the disconnect.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


class WholeAnswer(Response):
    """A JSON answer. Long answers are sent in pieces, as fast as the client reads. Other requests are served
    in between, and the connection buffers no second copy."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        body = bytes(self.body)
        for begin in range(0, max(1, len(body)), PIECE):
            more = begin + PIECE < len(body)
            piece = body[begin : begin + PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if more:
                await asyncio.sleep(0)


async def one_chunk(work: Coroutine[Any, Any, bytes]) -> AsyncGenerator[bytes, None]:
    yield await work


class EventStream(Response):
    """Sends each item of `chunks` as an event, then [DONE].

    The status is sent with the first chunk. An ApiError before the first chunk is raised from `start` and
    becomes an ordinary error response. A later ApiError becomes an error event.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self.chunks = chunks
        self.first = b""

    async def start(self) -> EventStream:
        self.first = await anext(self.chunks)
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await unless_gone(receive, self._send_all(scope.get(DIRECT, send)))
        except ClientGone:
            pass
        finally:
            await self.chunks.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": event(self.first), "more_body": True})
        try:
            async for chunk in self.chunks:
                lap = TRACE.laps("server")
                await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
                lap("send")
        except ApiError as e:
            await send({"type": "http.response.body", "body": event(e.body), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


class EarlyAnswer(Response):
    """A prefill server's answer. Its status is sent before the first chunk, as soon as the request seems to
    be accepted. SGLang's gateways give up a request if they get no status from the prefill server, for
    example because it died. After the status they go on with the decode server's answer.

    chunks: as for EventStream, or with stream=False the whole answer as one chunk. An error after the status
    becomes the answer's body, or an event.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], stream: bool) -> None:
        super().__init__(media_type="text/event-stream" if stream else "application/json")
        del self.headers["content-length"]
        self.chunks, self.stream = chunks, stream

    async def start(self) -> EarlyAnswer:
        self.first = asyncio.ensure_future(anext(self.chunks))
        try:
            await asyncio.wait({self.first}, timeout=EARLY_SECONDS)
        except asyncio.CancelledError:
            await self._end()
            raise
        if self.first.done():
            self.first.result()
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            pass
        finally:
            await self._end()

    async def _send_all(self, send: Send) -> None:
        try:
            await send(self._part(await self.first))
            async for chunk in self.chunks:
                await send(self._part(chunk))
        except ApiError as e:
            await send(self._part(e.body))
        await send({"type": "http.response.body", "body": DONE if self.stream else b"", "more_body": False})

    def _part(self, chunk: bytes) -> dict[str, Any]:
        body = event(chunk) if self.stream else chunk
        return {"type": "http.response.body", "body": body, "more_body": True}

    async def _end(self) -> None:
        """Ends the generation, so that no request stays in the engine."""
        self.first.cancel()
        await asyncio.gather(self.first, return_exceptions=True)
        await self.chunks.aclose()
