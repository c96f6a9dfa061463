"""One server, or a prefill and a decode server, as a load sees them. Each request goes to both of these, with
the fields by which they find each other, as a gateway that speaks SGLang's dialect sends it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from nextn.bench.client import Reply, get_text_with, stream
from nextn.bench.local_server import LocalServer
from nextn.bench.totals import totals

ROOMS = 2**63


class Alone:
    """`client`: of the server that answers."""

    def __init__(self, name: str, server: LocalServer, client: httpx.AsyncClient) -> None:
        self.name, self.server, self.client = name, server, client

    async def send(self, body: dict[str, Any]) -> Reply:
        """Raises RequestError."""
        return await stream(self.client, {"model": self.server.model, **body})

    async def totals(self) -> Mapping[str, float]:
        """Of the server that answers."""
        return totals(await get_text_with(self.client, "/metrics"))


class Apart(Alone):
    """`server`, `client`: the decode server's. `port`: the prefill server's bootstrap port."""

    def __init__(
        self, name: str, decode: LocalServer, client: httpx.AsyncClient,
        prefill: LocalServer, other: httpx.AsyncClient, port: int,
    ) -> None:  # fmt: skip
        super().__init__(name, decode, client)
        self.prefill, self.other = prefill, other
        self.fields = {"bootstrap_host": urlsplit(prefill.url).hostname, "bootstrap_port": port}
        self.rooms = random.Random()

    async def send(self, body: dict[str, Any]) -> Reply:
        """The decode server's answer. What the prefill server answers is read and dropped: without its pages
        the decode server computes the prompt."""
        fields = {**self.fields, "bootstrap_room": self.rooms.randrange(ROOMS)}
        body = {"model": self.server.model, **body, **fields}
        prefill = asyncio.ensure_future(self._prefill(body))
        try:
            return await stream(self.client, body)
        finally:
            prefill.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await prefill

    async def _prefill(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.HTTPError):
            await self.other.post("/v1/completions", json=body)
