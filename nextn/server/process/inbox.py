"""What has come from the engines for one HTTP request, and is not yet taken."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from nextn.request import Output
from nextn.server.process.messages import PromptScores, Tokens
from nextn.server.protocol.errors import ApiError


class Update(NamedTuple):
    """An output of request `rid`, the log-probabilities of its prompt (other requests may share them), or an
    error, after which nothing comes."""

    rid: str
    what: Output | Tokens | PromptScores | ApiError


class Updates(Protocol):
    """Where an engine's client puts them: an `Inbox`, or an `asyncio.Queue`."""

    def put_nowait(self, update: Update, /) -> None: ...


class Inbox:
    """A queue for one reader, who takes all there is: one who comes late finds several steps of a request."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._reader: asyncio.Future[None] | None = None

    def put_nowait(self, update: Update, /) -> None:
        self._updates.append(update)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> list[Update]:
        """Waits until there is something."""
        if not self._updates:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        updates, self._updates = self._updates, []
        return updates
