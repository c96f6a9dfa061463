"""Closes connections of stalled clients: those that send half a request, or do not read the answer. It also
refuses clients that send more than the server keeps: endless headers, or too many requests before one is
answered.

A closed connection counts as a client that left: its request ends and its pages are freed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import Server

log = logging.getLogger("nextn.server")

CHECKS_PER_TIMEOUT = 4  # number of checks of each connection within a client's time limit
MOST_UNREAD = 65536  # bytes of a request line with its headers; also of trailers
MOST_PIPELINED = 64  # requests of one connection that wait for the answer to an earlier one


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with the times since when it waits for its client (`time.monotonic`; None if it
    does not wait)."""

    reading_since: float | None = None  # waits for the rest of a request
    writing_since: float | None = None  # waits until the client reads, to write more
    unread = 0  # bytes received since the end of the headers or the last part of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.reading_since = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self.unread += len(data)
        super().data_received(data)
        if self.unread > MOST_UNREAD and not self.transport.is_closing():
            self.send_400_response(f"the request's headers are longer than {MOST_UNREAD} bytes")

    def on_headers_complete(self) -> None:
        self.unread = 0
        if len(self.pipeline) == MOST_PIPELINED:
            raise ValueError("too many requests on one connection")  # a parser error: 400, then it closes
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unread = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.reading_since is None:
            self.reading_since = time.monotonic()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.reading_since, self.unread = None, 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writing_since = time.monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writing_since = None

    def waits_since(self) -> float | None:
        since = [t for t in (self.reading_since, self.writing_since) if t is not None]
        return min(since, default=None)


async def cut_stalled(server: Server, seconds: float) -> None:
    """Closes each connection that has waited for its client for longer than `seconds`. Never returns."""
    while True:
        await asyncio.sleep(seconds / CHECKS_PER_TIMEOUT)
        latest = time.monotonic() - seconds
        connections: list[Any] = list(server.server_state.connections)
        for connection in connections:
            since = connection.waits_since()
            if since is not None and since < latest:
                what = "read its answer" if connection.writing_since is not None else "send its request"
                log.info("closed a connection: its client did not %s for %g s", what, seconds)
                connection.transport.abort()
