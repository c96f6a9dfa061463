"""Clients that hold a connection and do not get on: half a request, or an answer that is not taken.

Cutting one is to the server as if its client had gone: the request ends and its pages are free.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import Server

log = logging.getLogger("nextn.server")

LOOKS = 4  # at the connections, in the time that a client has


class Connection(HttpToolsProtocol):
    """uvicorn's, which knows since when it waits for its client; None: it does not."""

    coming_since: float | None = None  # for a whole request
    taking_since: float | None = None  # for room to write

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.coming_since = time.monotonic()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.coming_since is None:
            self.coming_since = time.monotonic()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.coming_since = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.taking_since = time.monotonic()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.taking_since = None

    def waits_since(self) -> float | None:
        since = [t for t in (self.coming_since, self.taking_since) if t is not None]
        return min(since, default=None)


async def cut_stalled(server: Server, seconds: float) -> None:
    """Cuts every connection that waits for its client longer than this. Returns never."""
    while True:
        await asyncio.sleep(seconds / LOOKS)
        latest = time.monotonic() - seconds
        connections: list[Any] = list(server.server_state.connections)
        for connection in connections:
            since = connection.waits_since()
            if since is not None and since < latest:
                what = "take its answer" if connection.taking_since is not None else "send its request"
                log.info("a connection is cut: its client did not %s for %g s", what, seconds)
                connection.transport.abort()
