"""Clients of one server, or of a prefill and a decode server. With two servers, each request goes to both,
with the fields by which the servers find each other, as a gateway for SGLang sends it."""

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
    """A client of one server. `client`: the HTTP client for the server that answers."""

    def __init__(self, name: str, server: LocalServer, client: httpx.AsyncClient) -> None:
        self.name, self.server, self.client = name, server, client

    async def send(self, body: dict[str, Any]) -> Reply:
        """Streams one request. Raises RequestError."""
        return await stream(self.client, {"model": self.server.model, **body})

    async def totals(self) -> Mapping[str, float]:
        """The counters of the server that answers."""
        return totals(await get_text_with(self.client, "/metrics"))


class Apart(Alone):
    """A client of a prefill and a decode server. `server`, `client`: those of the decode server. `other`: the
    HTTP client for the prefill server. `port`: the prefill server's bootstrap port."""

    def __init__(
        self, name: str, decode: LocalServer, client: httpx.AsyncClient,
        prefill: LocalServer, other: httpx.AsyncClient, port: int,
    ) -> None:  # fmt: skip
        super().__init__(name, decode, client)
        self.prefill, self.other = prefill, other
        self.fields = {"bootstrap_host": urlsplit(prefill.url).hostname, "bootstrap_port": port}
        self.rooms = random.Random()

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        fields = {**self.fields, "bootstrap_room": self.rooms.randrange(ROOMS)}
        return {"model": self.server.model, **body, **fields}

    async def send_in_turn(self, body: dict[str, Any]) -> Reply:
        """The same as `send`, but the decode server gets the request only after the whole prompt was
        computed."""
        body = self._asked(body)
        await self._prefill(body)
        return await stream(self.client, body)

    async def send(self, body: dict[str, Any]) -> Reply:
        """Returns the decode server's answer. The prefill server's answer is read and dropped: if it fails,
        the decode server computes the prompt itself."""
        body = self._asked(body)
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
