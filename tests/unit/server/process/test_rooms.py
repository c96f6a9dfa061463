"""Which engine has the request of a room."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.played_replicas import Played, played_replicas

from nextn.disaggregation.remote import Remote
from nextn.request import Output, SamplingParams
from nextn.server.process import rooms as module
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.inbox import Update
from nextn.server.process.messages import NewRequest, Ready, StepOutputs
from nextn.server.process.replicas import Replicas
from nextn.server.process.rooms import Rooms
from nextn.server.protocol.errors import ApiError
from nextn.stats import EngineStats

READY = Ready(258, 1024, 2, {}, EngineStats(), 5000)


def new(rid: str, room: int | None = None) -> NewRequest:
    return NewRequest(
        rid, [1, 2], SamplingParams(max_tokens=0), remote=None if room is None else Remote(room)
    )


def prefilling(count: int) -> tuple[Replicas, list[Played], Rooms]:
    rooms = Rooms(60)
    replicas, played = played_replicas(count, "round_robin")
    for client in replicas.ranks:
        client.rooms = rooms
    return replicas, played, rooms


def ended(rid: str, reason: str = "length") -> StepOutputs:
    return StepOutputs([Output(rid, [], [], reason)], EngineStats(), 0.1)


def test_a_room_is_where_its_request_went() -> None:
    replicas, played, rooms = prefilling(2)
    queue: asyncio.Queue[Update] = asyncio.Queue()
    replicas.submit([new("a", 7), new("b", 8), new("c")], queue)
    known = [rooms.find(room) for room in (7, 8, 9)]
    assert [each and each.rank for each in known] == [0, 1, None]
    assert [each and each.ready is played[each.rank].client.ready for each in known] == [True, True, None]
    replicas.submit([new("d", 7)], queue, rank=1)
    rid, what = queue.get_nowait()
    assert (rid, played[1].rids) == ("d", ["b"])
    assert isinstance(what, ApiError)
    assert (what.status, what.param) == (400, "bootstrap_room")
    played[0].client.receive(ended("a"))
    assert (found := rooms.find(7)) is not None
    assert not found.lost
    replicas.submit([new("e", 7)], queue, rank=1)
    assert (found := rooms.find(7)) is not None
    assert (found.rank, replicas.active) == (1, 3)


def test_rooms_of_requests_that_were_given_up() -> None:
    replicas, played, rooms = prefilling(2)
    queue: asyncio.Queue[Update] = asyncio.Queue()
    replicas.submit([new(str(room), room) for room in range(4)], queue)
    replicas.abort("0")
    replicas.end("1")
    played[0].client.detach("dead")  # it has room 2
    played[1].client.receive(ended("3"))
    known = [rooms.find(room) for room in range(4)]
    assert [each and each.lost for each in known] == [True, True, True, False]


def test_a_server_of_another_mode_has_no_rooms() -> None:
    client = EngineClient()
    Played(client)
    queue: asyncio.Queue[Update] = asyncio.Queue()
    client.submit([new("a", 7), new("b", 7)], queue)
    assert (client.active, queue.empty()) == (2, True)
    client.abort("a")


def test_rooms_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    rooms = Rooms(10)
    rooms.open(1, 0, READY)
    rooms.open(2, 0, READY)
    rooms.end(1, lost=False)
    now[0] += 9
    assert rooms.find(1) is not None
    now[0] += 2
    assert (rooms.find(1), rooms.find(2) is None) == (None, False)


@given(st.lists(st.tuples(st.sampled_from(["open", "end"]), st.integers(0, 5)), max_size=60))
def test_like_a_dictionary(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_ENDED", 3)
        rooms = Rooms(60)
        running: set[int] = set()
        gone: list[int] = []  # oldest first
        for step, room in steps:
            if step == "open":
                assert rooms.open(room, 0, READY) == (room not in running)
                running.add(room)
                gone = [each for each in gone if each != room]
            elif room in running:
                rooms.end(room, lost=False)
                running.remove(room)
                gone = [*gone, room][-3:]
            assert {each for each in range(6) if rooms.find(each) is not None} == running | set(gone)
