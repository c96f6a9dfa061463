"""The engine process's part of a profile: what it sends, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nextn.request import Output, Request, SamplingParams
from nextn.server.process import engine_process
from nextn.server.process.engine_profile import EngineProfile
from nextn.server.process.messages import (
    NewRequest,
    Profiled,
    StartProfile,
    Stop,
    StopProfile,
    add_of,
    decode_from_engine,
    encode,
)
from nextn.stats import EngineStats, SpecStats
from nextn.trace import TRACE


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    TRACE.take()


def step(profile: EngineProfile, count: int = 1) -> None:
    for _ in range(count):
        TRACE.laps("engine")("plan")
        if TRACE.on:
            TRACE.stepped()
        profile.stepped()


def test_it_ends_by_itself() -> None:
    sent: list[Profiled] = []
    profile = EngineProfile(sent.append, rank=None)
    step(profile)
    profile.start(StartProfile(4, 2, None), steps=1)
    step(profile)
    assert sent == []
    step(profile, 3)
    (one,) = sent
    assert (one.call, one.trace.name, one.trace.steps, len(one.trace.intervals)) == (4, "engine", 2, 2)
    profile.stop()
    assert len(sent) == 1


def test_it_is_stopped() -> None:
    sent: list[Profiled] = []
    profile = EngineProfile(sent.append, rank=1)
    profile.start(StartProfile(4, None, None), steps=0)
    step(profile, 3)
    profile.stop()
    profile.stop()
    assert [(each.call, each.trace.name, each.trace.steps) for each in sent] == [(4, "engine 1", 3)]
    assert decode_from_engine(encode(sent[0])) == sent[0]


@pytest.mark.parametrize(("first", "before", "left_out"), [(0, 7, 0), (3, 7, 0), (8, 7, 0), (10, 7, 2)])
def test_the_first_step(first: int, before: int, left_out: int) -> None:
    """Steps count from 1; one that has passed is the next."""
    sent: list[Profiled] = []
    profile = EngineProfile(sent.append, rank=None)
    profile.start(StartProfile(4, 1, first), steps=before)
    step(profile, left_out)
    assert sent == []
    step(profile)
    assert [(each.trace.steps, len(each.trace.intervals)) for each in sent] == [(1, 1)]


class OneTokenEngine:
    """A step ends whatever there is."""

    wakes, stalled = None, False

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def has_work(self) -> bool:
        return bool(self.requests)

    must_step = has_work

    def check(self) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats()

    def step(self) -> list[Output]:
        ended, self.requests = self.requests, []
        TRACE.laps("engine").whole("step")
        if TRACE.on:
            TRACE.stepped()
        return [Output(request.rid, [5], [0], "length", spec=SpecStats()) for request in ended]


class Grammars:
    def start(self) -> None:
        pass


class Link:
    def __init__(self, says: Callable[[list[Any]], Iterator[list[Any]]]) -> None:
        self.heard: list[Any] = []
        self.says = says(self.heard)

    def send(self, message: Any) -> None:
        self.heard.append(message)

    def receive(self, **how: Any) -> list[Any]:
        return next(self.says)


def test_in_the_loop() -> None:
    def says(heard: list[Any]) -> Iterator[list[Any]]:
        yield [StartProfile(3, 1, None)]
        yield [add_of([NewRequest("a", [0], SamplingParams())])]
        yield [StopProfile()]
        yield [StartProfile(4, None, None)]
        yield []
        yield [StopProfile()]
        yield [Stop()]

    link = Link(says)
    engine_process.loop(OneTokenEngine(), link, Grammars(), rank=2)  # type: ignore[arg-type]
    first, second = (message for message in link.heard if isinstance(message, Profiled))
    assert (first.call, first.trace.name, first.trace.steps) == (3, "engine 2", 1)
    names = [each.name for each in first.trace.intervals]
    assert names == ["wait", "add requests", "step", "send"]
    assert (second.call, second.trace.steps) == (4, 0)
    assert [each.name for each in second.trace.intervals] == ["wait", "add requests", "send", "wait"]
