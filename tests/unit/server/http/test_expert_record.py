"""The endpoints that record experts' rows, over ASGI, with engines that are played."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.played_replicas import Played, played_replicas
from support.scripted_socket import app_of

from nextn.distributed.placement_file import read_dump
from nextn.expert_load import CountTable, ExpertRecord
from nextn.server.http.expert_record import FOLDER_VARIABLES
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Done, Recorded, RecordExperts
from nextn.server_config import ServerConfig

Server = tuple[httpx.AsyncClient, list[Played]]
START, STOP, DUMP = (f"/{action}_expert_distribution_record" for action in ("start", "stop", "dump"))


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Server]:
    monkeypatch.setenv(FOLDER_VARIABLES[0], str(tmp_path / "made" / "for it"))
    engine = EngineClient()
    played = Played(engine)
    transport = httpx.ASGITransport(app_of(ServerConfig(), Metrics(engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client, [played]


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Server]:
    monkeypatch.setenv(FOLDER_VARIABLES[1], str(tmp_path))
    replicas, played = played_replicas(2)
    transport = httpx.ASGITransport(app_of(ServerConfig(dp_size=2), Metrics(replicas)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client, played


def table(counts: Any, kind: type = np.int64) -> CountTable:
    return CountTable(np.shape(counts), np.array(counts, kind).tobytes())


def recorded(engine: Played, record: ExpertRecord | None) -> None:
    def on(message: Any) -> Done | Recorded | None:
        if not isinstance(message, RecordExperts):
            return None
        return Recorded(message.call, record) if message.action == "dump" else Done(message.call, None)

    engine.on = on


def actions(engine: Played) -> list[str]:
    return [message.action for message in engine.received if isinstance(message, RecordExperts)]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_start_stop_and_dump(one: Server, method: str, tmp_path: Path) -> None:
    http, [engine] = one
    recorded(engine, ExpertRecord(table([[1, 2, 3], [4, 0, 2]]), table([[0, 5, 0]]), 7))
    answers = [await http.request(method, path) for path in (START, STOP, DUMP)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert actions(engine) == ["start", "stop", "dump"]
    told = answers[2].json()
    path = Path(told.pop("path"))
    assert told == {"engines": 1, "steps": 7, "steps_left_out": 0, "total": 12, "nextn_total": 5}
    assert path.parent == tmp_path / "made" / "for it"
    dump = read_dump(path)
    assert dump.target.tolist() == [[1, 2, 3], [4, 0, 2]]
    assert dump.nextn is not None
    assert dump.nextn.tolist() == [[0, 5, 0]]


async def test_engines_are_added_up(two: Server) -> None:
    http, engines = two
    recorded(engines[0], ExpertRecord(table([[1, 2]]), None, 3))
    recorded(engines[1], ExpertRecord(table([[10, 20]]), None, 4))
    told = (await http.post(DUMP)).json()
    assert (told["engines"], told["steps"], told["total"], told["nextn_total"]) == (2, 7, 33, 0)
    content = json.loads(Path(told["path"]).read_text())
    assert content["logical_count"] == [[11, 22]]
    assert "nextn_logical_count" not in content
    recorded(engines[0], None)  # it had no requests
    assert (await http.post(DUMP)).json()["total"] == 30


async def test_steps_of_engines_come_one_after_the_other(two: Server) -> None:
    http, engines = two
    recorded(engines[0], ExpertRecord(table([[[1, 2]], [[3, 4]]], np.int32), None, 9, 7))
    recorded(engines[1], ExpertRecord(table([[[5, 6]]], np.int32), None, 1))
    told = (await http.post(DUMP)).json()
    assert (told["steps"], told["steps_left_out"], told["total"]) == (10, 7, 21)
    path = Path(told["path"])
    content = json.loads(path.read_text())
    assert content["logical_count"] == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert (content["nextn_steps"], content["nextn_steps_left_out"]) == ([9, 1], [7, 0])
    assert read_dump(path).target.tolist() == [[9, 12]]


async def test_nothing_was_recorded(one: Server, tmp_path: Path) -> None:
    http, [engine] = one
    recorded(engine, None)
    answer = await http.post(DUMP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "nothing_recorded")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_an_engine_that_does_not_count(one: Server) -> None:
    http, [engine] = one
    engine.on = lambda message: Done(message.call, "this engine does not count")
    answer = await http.post(START)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "experts_not_counted")
    engine.restart()
    assert actions(engine) == ["start"]


async def test_a_folder_that_cannot_be(one: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    http, [engine] = one
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER_VARIABLES[0], str(tmp_path / "file"))
    answer = await http.post(DUMP)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "record_not_written")
    assert actions(engine) == []  # what was recorded is still there


async def test_an_engine_that_takes_anothers_place_records_too(two: Server) -> None:
    http, engines = two
    for engine in engines:
        recorded(engine, None)
    engines[1].client.detach("dead")
    await http.post(START)
    engines[1].restart()
    assert actions(engines[1]) == ["start"]
    await http.post(STOP)
    engines[0].restart()
    assert actions(engines[0]) == ["start", "stop"]


async def test_no_engine(one: Server) -> None:
    http, [engine] = one
    engine.client.detach("dead")
    assert [(await http.post(path)).status_code for path in (START, STOP, DUMP)] == [503] * 3
