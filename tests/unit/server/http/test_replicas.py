"""What a server of several replicas says, and how requests name one, over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.played_replicas import Played, played_replicas
from support.scripted_socket import app_of
from support.small_tokenizer import write_small_tokenizer

from nextn.request import Output
from nextn.server.http import control
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.messages import Abort, Add, Done, StepOutputs
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats, SpecStats
from nextn.tokenizer.tokenizer import Tokenizer

CONFIG = ServerConfig(dp_size=2, max_running_requests=2, max_queued_requests=3)
Server = tuple[httpx.AsyncClient, list[Played]]


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Server]:
    replicas, played = played_replicas(2)
    tokenizer = Tokenizer.from_folder(write_small_tokenizer(tmp_path))
    app = app_of(CONFIG, Metrics(replicas), tokenizer)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client, played


def answering(engine: Played) -> None:
    def on(message: Any) -> StepOutputs | Done | None:
        if isinstance(message, Add):
            outputs = [Output(r.rid, [5], [0], "length", spec=SpecStats()) for r in message.requests]
            return StepOutputs(outputs, EngineStats(), 0.1)
        return Done(message.call, None) if hasattr(message, "call") else None

    engine.on = on


async def test_loads_and_health(http: Server) -> None:
    client, played = http
    played[1].client.receive(StepOutputs([], EngineStats(running=1, waiting=2), 0.1))
    loads = (await client.get("/v1/loads")).json()["loads"]
    assert [(load["dp_rank"], load["num_total_reqs"]) for load in loads] == [(0, 0), (1, 3)]
    assert [load["num_reqs"] for load in (await client.get("/get_load")).json()] == [0, 3]
    assert (await client.get("/health")).json() == {"status": "ok"}
    played[0].client.detach("dead")
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "dp_ranks_down": [0]})
    loads = (await client.get("/v1/loads")).json()["loads"]
    assert [load["engine_up"] for load in loads] == [False, True]
    played[1].client.detach("dead")
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()["dp_ranks_down"]) == (503, [0, 1])


async def test_server_info(http: Server) -> None:
    info = (await http[0].get("/server_info")).json()
    assert (info["dp_size"], info["load_balance_method"], len(info["internal_states"])) == (2, "prefix", 2)


async def test_the_replica_that_is_asked_for(http: Server) -> None:
    client, played = http
    for engine in played:
        answering(engine)
    for fields, headers in (
        ({"routed_dp_rank": 1}, {}), ({"data_parallel_rank": 1}, {}), ({}, {"X-Data-Parallel-Rank": "1"}),
    ):  # fmt: skip
        body = {"prompt": "x", "max_tokens": 1, **fields}
        answer = await client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
    assert [len(engine.rids) for engine in played] == [0, 3]
    for path, prompt in (("/v1/completions", "prompt"), ("/generate", "text")):
        refused = await client.post(path, json={prompt: "x", "routed_dp_rank": 2})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "routed_dp_rank")
    refused = await client.post(
        "/v1/completions", json={"prompt": "x"}, headers={"X-Data-Parallel-Rank": "2"}
    )
    assert (refused.status_code, "replicas are 0 to 1" in refused.text) == (400, True)
    played[1].client.detach("dead")
    refused = await client.post("/v1/completions", json={"prompt": "x", "routed_dp_rank": 1})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_room_for_all_replicas(http: Server) -> None:
    """2 x 2 may run, 3 wait."""
    client, played = http
    refused = await client.post("/v1/completions", json={"prompt": "x", "n": 8})
    assert "--dp-size * --max-running-requests + --max-queued-requests is 7" in refused.text
    running = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": ["x"] * 7}))
    while not sum(engine.client.active for engine in played):
        await asyncio.sleep(0)
    refused = await client.post("/v1/completions", json={"prompt": "x"})
    assert refused.json()["error"]["code"] == "queue_full"
    await client.post("/abort_request", json={"abort_all": True})
    assert (await running).status_code == 200


async def test_health_generate_asks_all_and_waits_for_one(
    http: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, played = http
    answering(played[1])
    assert (await client.get("/health_generate")).status_code == 200
    assert [[type(m) for m in engine.received] for engine in played] == [[Add, Abort], [Add]]
    played[1].on = lambda message: None
    monkeypatch.setattr(control, "HEALTH_SECONDS", 0.01)
    assert (await client.get("/health_generate")).json()["error"]["code"] == "engine_unresponsive"


async def test_commands(http: Server) -> None:
    client, played = http
    for engine in played:
        answering(engine)
    args = {"server_args": {"speculative_num_steps": 1}}
    assert (await client.post("/set_internal_state", json=args)).json() == [True, True]
    assert (await client.post("/flush_cache")).status_code == 200
