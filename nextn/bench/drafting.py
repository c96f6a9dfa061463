"""What automatic depth does while a load runs, as /v1/loads reports it.

async with DraftingWatch(url) as watch:
    load = await run_load(url, bodies, 16)
watch.found    # at the largest number of requests that were seen to decode at once
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from types import TracebackType

import httpx

from nextn.bench.client import get_with, make_client
from nextn.bench.errors import BenchError

PERIOD = 0.3  # seconds between two looks


@dataclass(frozen=True)
class Drafting:
    """The state of automatic depth. gain: tokens/s with drafts over without, as the engine predicts it."""

    drafting: bool
    requests: int  # that decoded
    gain: float
    reason: str
    tried: float | None = None  # seconds of load since the last trial


async def read_drafting(client: httpx.AsyncClient) -> Drafting | None:
    """Reads the state once; None with a fixed depth. Raises BenchError."""
    (load,) = (await get_with(client, "/v1/loads?include=spec"))["loads"]
    auto = load["speculative"].get("auto")
    return None if auto is None else Drafting(**auto)


class DraftingWatch:
    """Reads the state repeatedly until the load is over. A load ends with fewer requests, which says nothing
    of the full load. So the reading with most requests counts, and of several the latest."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.found: Drafting | None = None

    async def __aenter__(self) -> DraftingWatch:
        self._client = make_client(self.url)
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._task.cancel()
        # Of a server that is gone the load tells.
        with contextlib.suppress(asyncio.CancelledError, BenchError):
            await self._task
        async with contextlib.aclosing(self._client):
            if error is None:
                await self._look()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            await self._look()

    async def _look(self) -> None:
        seen = await read_drafting(self._client)
        if seen is not None and (self.found is None or seen.requests >= self.found.requests):
            self.found = seen
