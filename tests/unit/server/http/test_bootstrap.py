"""The bootstrap port of a prefill server, over ASGI."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from support.played_replicas import Played

from nextn.disaggregation.remote import Remote
from nextn.request import Output, SamplingParams
from nextn.server.http.bootstrap import bootstrap_app, own_address, reachable
from nextn.server.launch import make_engines
from nextn.server.listen import listen
from nextn.server.process.inbox import Update
from nextn.server.process.messages import NewRequest, StepOutputs
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats

Server = tuple[httpx.AsyncClient, list[Played]]


@pytest.fixture
async def http() -> AsyncIterator[Server]:
    """Of two replicas."""
    config = ServerConfig(disaggregation_mode="prefill", dp_size=2, load_balance_method="round_robin")
    engines = make_engines(config)
    played = [Played(client, transfer_port=5000 + i) for i, client in enumerate(engines.ranks)]
    rooms = engines.ranks[0].rooms
    assert rooms is not None
    transport = httpx.ASGITransport(bootstrap_app(config, engines, rooms, 30000))
    async with httpx.AsyncClient(transport=transport, base_url="http://prefill") as client:
        yield client, played


def submit(engine: Played, room: int) -> None:
    request = NewRequest(f"r{room}", [1], SamplingParams(max_tokens=0), remote=Remote(room))
    engine.client.submit([request], asyncio.Queue[Update]())


async def test_where_a_room_is(http: Server) -> None:
    client, played = http
    assert (await client.get("/route?bootstrap_room=7")).status_code == 404
    submit(played[1], 7)
    answer = await client.get("/route?bootstrap_room=7")
    assert answer.json() == {"host": "prefill", "port": 5001, "dp_rank": 1, "room": 7}
    played[1].client.receive(StepOutputs([Output("r7", [], [], "length")], EngineStats(), 0.1))
    assert (await client.get("/route?bootstrap_room=7")).json() == answer.json()


async def test_an_engine_that_died_has_no_rooms(http: Server) -> None:
    client, played = http
    submit(played[0], 7)
    submit(played[1], 8)
    played[0].client.detach("dead")
    lost = await client.get("/route?bootstrap_room=7")
    assert (lost.status_code, lost.json()["error"]["code"]) == (410, "lost_room")
    played[0].transfer_port = 6000
    played[0].restart()
    submit(played[0], 9)
    assert (await client.get("/route?bootstrap_room=7")).status_code == 410
    ports = [(await client.get(f"/route?bootstrap_room={room}")).json()["port"] for room in (8, 9)]
    assert ports == [5001, 6000]
    for engine in played:
        engine.client.detach("dead")
    assert (await client.get("/route?bootstrap_room=8")).status_code == 410
    assert (await client.get("/health")).status_code == 503


async def test_what_sglang_asks(http: Server) -> None:
    client, played = http
    assert (await client.get("/health")).text == "OK"
    info = (await client.get("/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1")).json()
    assert (info["dp_size"], info["attn_tp_size"], info["pp_size"], info["page_size"]) == (2, 1, 1, 16)
    assert (info["prefill_http_port"], info["follow_bootstrap_room"]) == (30000, False)
    submit(played[0], 7)
    submit(played[1], 2**63 - 1)
    ranks = await client.post("/query_dp_ranks", json={"bootstrap_rooms": [7, 8, 2**63 - 1, "7"]})
    assert ranks.json() == {"7": 0, str(2**63 - 1): 1}


async def test_nobody_registers_anything(http: Server) -> None:
    client, _ = http
    for answer in (
        await client.put("/route", json={"rank_ip": "6.6.6.6", "rank_port": 1}),
        await client.post("/register_dp_rank", json={"bootstrap_room": 7, "dp_rank": 1}),
    ):
        assert answer.status_code == 403
        assert "registers its engines and rooms by itself" in answer.json()["error"]["message"]
    assert (await client.get("/route?bootstrap_room=7")).status_code == 404


@pytest.mark.parametrize("room", ["", "-1", "x", "1.0", "²", str(2**63), "9" * 5000])
async def test_rooms_that_there_cannot_be(http: Server, room: str) -> None:
    answer = await http[0].get("/route", params={"bootstrap_room": room})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "bootstrap_room")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100000,
        b'{"bootstrap_rooms": 1}',
        b'{"bootstrap_rooms": [[]]}',
        b'{"bootstrap_rooms": [Infinity]}',
        b"\xff",
    ],
)
async def test_strange_bodies(http: Server, body: bytes) -> None:
    assert (await http[0].post("/query_dp_ranks", content=body)).status_code == 400


async def test_long_bodies(http: Server) -> None:
    assert (await http[0].post("/query_dp_ranks", content=b" " * (2**20 + 1))).status_code == 413


def test_the_address_for_other_machines() -> None:
    with listen("127.0.0.1", 0) as one, listen("0.0.0.0", 0) as all_of_them:
        assert reachable(one) == ("127.0.0.1", one.getsockname()[1])
        host, port = reachable(all_of_them)
        assert (host, port) == (own_address(), all_of_them.getsockname()[1])
    socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
    assert host not in ("0.0.0.0", "::")
