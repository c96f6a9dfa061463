"""Updates from the engines for one HTTP request that have not been read yet."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from nextn.request import Output
from nextn.server.process.messages import PromptScores, Tokens
from nextn.server.protocol.errors import ApiError


class Update(NamedTuple):
    """An output of request `rid`, the log-probabilities of its prompt (other requests may share them), or an
    error, which is the last update."""

    rid: str
    what: Output | Tokens | PromptScores | ApiError


class Updates(Protocol):
    """The queue into which an engine's client puts updates: an `Inbox`, or an `asyncio.Queue`."""

    def put_nowait(self, update: Update, /) -> None: ...


class Inbox:
    """A queue for one reader, which takes all updates at once. A late reader gets several steps together."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._reader: asyncio.Future[None] | None = None

    def put_nowait(self, update: Update, /) -> None:
        self._updates.append(update)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> list[Update]:
        """Takes all updates. Waits if there are none."""
        if not self._updates:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        updates, self._updates = self._updates, []
        return updates
