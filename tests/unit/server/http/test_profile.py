"""/start_profile and /stop_profile over ASGI, with engines that are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.played_replicas import Played, played_replicas
from support.scripted_socket import app_of

from nextn.server.http.profile import FOLDER_VARIABLES
from nextn.server.monitoring import profiler
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Profiled, StartProfile, StopProfile
from nextn.server_config import ServerConfig
from nextn.trace import TRACE, Interval, ProcessTrace
from nextn.trace_file import read

Server = tuple[httpx.AsyncClient, list[Played]]


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Server]:
    for name in FOLDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLES[1], str(tmp_path / "default"))
    engine = EngineClient()
    engines = [Played(engine)]
    async with client_of(ServerConfig(), Metrics(engine)) as client:
        yield client, engines
    TRACE.take()


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Server]:
    replicas, engines = played_replicas(2)
    config = ServerConfig(dp_size=2, profile_dir=str(tmp_path / "option"))
    async with client_of(config, Metrics(replicas)) as client:
        yield client, engines
    TRACE.take()


def client_of(config: ServerConfig, metrics: Metrics) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app_of(config, metrics)), base_url="http://server")


class Recording:
    """What a played engine does: it sends its part when it is asked to stop, or on `end`."""

    def __init__(self, engine: Played, name: str = "engine") -> None:
        self.engine, self.name = engine, name
        self.started: list[StartProfile] = []
        engine.on = self.on

    def on(self, message: Any) -> Profiled | None:
        if isinstance(message, StartProfile):
            self.started.append(message)
        return self.part(3) if isinstance(message, StopProfile) else None

    def part(self, steps: int) -> Profiled:
        step = Interval("engine", "step", 1, 10, 20, {"rows": 2})
        return Profiled(self.started[-1].call, ProcessTrace(7, self.name, {1: "MainThread"}, [step], steps))

    def end(self) -> None:
        self.engine.client.receive(self.part(5))


def trace_in(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_until_it_is_stopped(one: Server, method: str, tmp_path: Path) -> None:
    http, [engine] = one
    recording = Recording(engine)
    begun = await http.request(method, "/start_profile")
    assert (begun.status_code, begun.text) == (200, "Start profiling.\n")
    assert [(each.steps, each.first) for each in recording.started] == [(None, None)]
    await http.get("/livez", headers={"X-Request-ID": "mine"})
    written = await http.request(method, "/stop_profile")
    assert written.status_code == 200
    path = trace_in(tmp_path / "default")
    answer = written.json()
    assert answer.pop("intervals") > 3
    expected = {"path": str(path), "processes": ["server", "engine"], "steps": [3], "left_out": 0}
    assert answer == expected
    events = read(path)
    assert {"rows": 2} in [event["args"] for event in events if event["ph"] == "X"]
    mine = [event for event in events if event.get("args", {}).get("request id") == "mine"]
    assert [(event["name"], event["args"]["status"], event["args"]["ended"]) for event in mine] == [
        ("GET /livez", 200, True)
    ]
    names = [event["name"] for event in events if event["ph"] == "b"]
    assert f"{method} /stop_profile" in names  # it has not ended yet
    assert not TRACE.on
    assert (await http.post("/stop_profile")).json()["path"] == str(path)  # the last one


async def test_a_number_of_steps(one: Server, tmp_path: Path) -> None:
    """As SGLang's own client sends it, with numbers as text."""
    http, [engine] = one
    recording = Recording(engine)
    body = {
        "output_dir": str(tmp_path / "made" / "for it"), "num_steps": "5", "start_step": "9",
        "activities": ["CPU", "GPU"], "profile_by_stage": False, "merge_profiles": True, "with_stack": None,
        "profile_prefix": "mine", "profile_stages": None,
    }  # fmt: skip
    assert (await http.post("/start_profile", json=body)).status_code == 200
    assert [(each.steps, each.first) for each in recording.started] == [(5, 9)]
    again = await http.post("/start_profile", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "profile_running")
    recording.end()
    while not list((tmp_path / "made" / "for it").glob("mine-*.trace.json.gz")):
        await asyncio.sleep(0.01)
    written = (await http.post("/stop_profile")).json()
    assert written["path"] == str(trace_in(tmp_path / "made" / "for it"))
    assert written["steps"] == [5]
    assert not any(isinstance(message, StopProfile) for message in engine.received)


async def test_vllms_benchmark_sends_a_completion(one: Server) -> None:
    http, [engine] = one
    Recording(engine)
    body = {"model": "nextn-tiny", "prompt": "x", "max_tokens": 1, "logprobs": None}
    assert (await http.post("/start_profile", json=body)).status_code == 200


async def test_the_first_engine_ends_it(two: Server, tmp_path: Path) -> None:
    http, engines = two
    recordings = [Recording(engine, f"engine {rank}") for rank, engine in enumerate(engines)]
    await http.post("/start_profile", json={"num_steps": 5})
    recordings[1].end()
    written = (await http.post("/stop_profile")).json()
    assert written["processes"] == ["server", "engine 0", "engine 1"]
    assert written["steps"] == [3, 5]
    assert Path(written["path"]).parent == tmp_path / "option"


async def test_an_engine_that_dies(two: Server) -> None:
    http, engines = two
    for rank, engine in enumerate(engines):
        Recording(engine, f"engine {rank}")
    await http.post("/start_profile", json={"num_steps": 5})
    engines[0].client.detach("it died")
    assert (await http.post("/stop_profile")).json()["processes"] == ["server", "engine 1"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"output_dir": "relative"}, "output_dir"),
        ({"output_dir": "/nul\0"}, "output_dir"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": "two"}, "num_steps"),
        ({"num_steps": 1.5}, "num_steps"),
        ({"start_step": -1}, "start_step"),
        ({"activities": ["CPU", "MEM"]}, "activities"),
        ({"activities": "CPU"}, "activities"),
        ({"profile_prefix": "../x"}, "profile_prefix"),
        ({"profile_by_stage": True}, "profile_by_stage"),
        ({"profile_stages": ["decode"]}, "profile_stages"),
        ({"with_stack": True}, "with_stack"),
        ({"record_shapes": True}, "record_shapes"),
    ],
)
async def test_fields_that_are_refused(one: Server, body: dict[str, Any], param: str) -> None:
    http, [engine] = one
    answer = await http.post("/start_profile", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert engine.received == []
    assert not TRACE.on


async def test_a_folder_that_cannot_be(one: Server, tmp_path: Path) -> None:
    http, [engine] = one
    (tmp_path / "file").touch()
    answer = await http.post("/start_profile", json={"output_dir": str(tmp_path / "file")})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "profile_dir_not_usable")
    assert str(tmp_path / "file") in error["message"]
    assert engine.received == []
    Recording(engine)
    assert (await http.post("/start_profile")).status_code == 200  # elsewhere


async def test_nothing_was_started(one: Server) -> None:
    http, _ = one
    answer = await http.post("/stop_profile")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "profile_not_started")


async def test_no_engine(one: Server) -> None:
    http, [engine] = one
    engine.client.detach("it died")
    assert (await http.post("/start_profile")).status_code == 503
    assert not TRACE.on


async def test_a_file_that_cannot_be_written(
    one: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was recorded is kept, and written when it can be."""
    http, [engine] = one
    Recording(engine)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    await http.post("/start_profile")
    with monkeypatch.context() as patch:
        patch.setattr(profiler, "write", full)
        answer = await http.post("/stop_profile")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (500, "profile_not_written")
    assert "No space left on device" in error["message"]
    written = (await http.post("/stop_profile")).json()
    assert written["steps"] == [3]
    assert written["path"] == str(trace_in(tmp_path / "default"))
