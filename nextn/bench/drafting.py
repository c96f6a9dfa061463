"""The state of automatic depth while a load runs, as /v1/loads reports it.

async with DraftingWatch(url) as watch:
    load = await run_load(url, bodies, 16)
watch.found    # the state read while the most requests were decoding
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

import httpx

from nextn.bench.client import get_with, make_client
from nextn.bench.errors import BenchError
from nextn.drafting_state import DraftingState

PERIOD = 0.3  # seconds between two readings


async def read_drafting(client: httpx.AsyncClient) -> DraftingState | None:
    """Reads the state once, of the replica with the most requests; None if the depth is fixed. Raises
    BenchError."""
    answer = await get_with(client, "/v1/loads?include=spec")
    try:
        said = [load["speculative"].get("auto") for load in answer["loads"]]
        states = [DraftingState(**auto) for auto in said if auto is not None]
        return max(states, key=lambda state: state.requests, default=None)
    except (KeyError, TypeError, AttributeError) as e:
        raise BenchError(f"{client.base_url}v1/loads: unreadable; is it a nextn server? ({e!r})") from e


class DraftingWatch:
    """Reads the state repeatedly until the load is over. `found` is the reading with the most requests, the
    latest of equal ones. At its end a load has fewer requests, so the last reading would not show the full
    load."""

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
        # If the server is gone, the load itself reports it.
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
