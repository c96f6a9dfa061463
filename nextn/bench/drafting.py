"""What automatic depth does while a load runs, as /v1/loads reports it.

async with DraftingWatch(url) as watch:
    load = await run_load(url, bodies, 16)
watch.found    # at the largest number of requests that were seen to decode at once
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

import httpx

from nextn.bench.client import get_with, make_client
from nextn.bench.errors import BenchError
from nextn.drafting_state import DraftingState

PERIOD = 0.3  # seconds between two looks


async def read_drafting(client: httpx.AsyncClient) -> DraftingState | None:
    """Reads the state once, of the replica with most requests; None with a fixed depth. Raises BenchError."""
    answer = await get_with(client, "/v1/loads?include=spec")
    try:
        said = [load["speculative"].get("auto") for load in answer["loads"]]
        states = [DraftingState(**auto) for auto in said if auto is not None]
        return max(states, key=lambda state: state.requests, default=None)
    except (KeyError, TypeError, AttributeError) as e:
        raise BenchError(f"{client.base_url}v1/loads: unreadable; is it a nextn server? ({e!r})") from e


class DraftingWatch:
    """Reads the state repeatedly until the load is over. A load ends with fewer requests, which says nothing
    of the full load. So the reading with most requests counts, and of several the latest."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.found: DraftingState | None = None

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
