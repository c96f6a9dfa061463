"""Which of a server's words on automatic depth stands for a load."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import httpx
import pytest

from nextn.bench import drafting
from nextn.bench.drafting import DraftingWatch
from nextn.bench.errors import BenchError
from nextn.drafting_state import DraftingState


class Server:
    """Answers with one word after another; with the last one from then on. None: the depth is fixed."""

    def __init__(self, words: list[DraftingState | None]) -> None:
        self.words, self.asked = words, 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/loads"
        word = self.words[min(self.asked, len(self.words) - 1)]
        self.asked += 1
        auto = {} if word is None else {"auto": dataclasses.asdict(word)}
        return httpx.Response(200, json={"loads": [{"speculative": {"accept_length": 1.0, **auto}}]})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server([None])
    monkeypatch.setattr(drafting, "PERIOD", 0.001)
    reached_over(made, monkeypatch)
    return made


def reached_over(answer: Callable[[httpx.Request], httpx.Response], monkeypatch: pytest.MonkeyPatch) -> None:
    def client(url: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, transport=httpx.MockTransport(answer))

    monkeypatch.setattr(drafting, "make_client", client)


async def watched(server: Server, looks: int, end: Callable[[], object] = bool) -> DraftingState | None:
    """What is found by a load that takes so many looks and then ends so."""
    async with DraftingWatch("http://server") as watch:
        while server.asked < looks:
            await asyncio.sleep(0.001)
        end()
    return watch.found


async def test_the_fullest_and_of_those_the_latest(server: Server) -> None:
    """A load begins and ends with fewer requests than it has between."""
    first = DraftingState(True, 16, 1.1, "a guess")
    later = DraftingState(False, 16, 0.94, "measured")
    server.words = [DraftingState(True, 4, 1.4, ""), first, later, DraftingState(True, 1, 1.5, "")]
    assert await watched(server, 6) == later


async def test_a_load_that_is_over_before_the_first_look(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "PERIOD", 100)
    server.words = [DraftingState(True, 1, 1.5, "")]
    assert await watched(server, 0) == server.words[0]


async def test_a_fixed_depth(server: Server) -> None:
    assert await watched(server, 3) is None


async def test_the_load_tells_what_is_wrong(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the watch, which sees it too."""

    def broken(request: httpx.Request) -> httpx.Response:
        server.asked += 1
        raise httpx.ConnectError("gone")

    reached_over(broken, monkeypatch)
    with pytest.raises(ZeroDivisionError):
        await watched(server, 1, lambda: 1 // 0)
    with pytest.raises(BenchError, match=r"GET http://server/v1/loads\?include=spec: ConnectError: gone"):
        await watched(server, 1)


async def test_of_several_replicas_the_busiest() -> None:
    def word(requests: int) -> dict[str, object]:
        return dataclasses.asdict(DraftingState(True, requests, 1.5, ""))

    said: list[dict[str, object]] = [{"auto": word(3)}, {}, {"auto": word(9)}, {"auto": word(4)}]
    loads = {"loads": [{"speculative": each} for each in said]}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=loads))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        state = await drafting.read_drafting(client)
    assert state == DraftingState(True, 9, 1.5, "")
