"""The engine process's loop while all that its requests wait for are grammars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
from support.toy_grammar import ToyGrammar

from nextn.constraint import Constraint
from nextn.engine.expert_recorder import ExpertRecorder
from nextn.expert_load import CountTable, ExpertRecord
from nextn.grammar.fair_queue import Source
from nextn.grammar.limits import Busy
from nextn.request import Output, Request, SamplingParams
from nextn.server.process import engine_process
from nextn.server.process.messages import (
    Abort,
    Done,
    FlushCache,
    NewRequest,
    Recorded,
    RecordExperts,
    Rejected,
    StepOutputs,
    Stop,
    add_of,
    decode_from_engine,
    encode,
)
from nextn.stats import EngineStats, SpecStats, TransferStats


class OneStepEngine:
    """A step ends whatever there is."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.flushed = 0

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def abort(self, rid: str) -> bool:
        return False

    wakes = None
    stalled = False

    def has_work(self) -> bool:
        return bool(self.requests)

    def must_step(self) -> bool:
        return self.has_work()

    def check(self) -> None:
        pass

    def flush_cache(self) -> bool:
        self.flushed += 1
        return True

    def step(self) -> list[Output]:
        ended, self.requests = self.requests, []
        return [Output(request.rid, [5], [0], "length", spec=SpecStats()) for request in ended]

    def stats(self) -> EngineStats:
        return EngineStats()


class Link:
    """The server's end, played: `says` yields what comes next, and looks at `heard`."""

    def __init__(self, says: Callable[[Link], Iterator[list[Any]]]) -> None:
        self.heard: list[Any] = []
        self.says = says(self)

    def send(self, message: Any) -> None:
        self.heard.append(message)

    def receive(self, wait: bool, milliseconds: int, wakes: object = None, agent: object = None) -> list[Any]:
        time.sleep(0.001)
        return next(self.says)


class Waiting(Future[Any]):
    def drop(self) -> None:
        pass


class Grammars:
    """All wait for the same."""

    def __init__(self) -> None:
        self.compiling = Waiting()

    def start(self) -> None:
        pass

    def submit(self, constraint: Constraint, source: Source) -> Waiting:
        return self.compiling


class Toy:
    def begin(self) -> ToyGrammar:
        return ToyGrammar(12, length=4, spread=2)


NEW = NewRequest("r", [0], SamplingParams(constraint=Constraint("regex", "a")))


def played(
    grammars: Grammars, says: Callable[[Link], Iterator[list[Any]]]
) -> tuple[OneStepEngine, list[Any]]:
    engine, link = OneStepEngine(), Link(says)
    engine_process.loop(engine, link, grammars)  # type: ignore[arg-type]
    return engine, link.heard


def test_nothing_is_flushed_under_a_request_that_waits() -> None:
    grammars = Grammars()

    def says(link: Link) -> Iterator[list[Any]]:
        yield [add_of([NEW])]
        yield [FlushCache(1)]
        grammars.compiling.set_result(Toy())
        while not any(isinstance(message, StepOutputs) and message.outputs for message in link.heard):
            yield []
        yield [FlushCache(2)]
        yield [Stop()]

    engine, heard = played(grammars, says)
    assert [m for m in heard if isinstance(m, Done)] == [
        Done(1, "requests are running or waiting"),
        Done(2, None),
    ]
    assert engine.flushed == 1


def test_experts_are_recorded() -> None:
    counts = (np.zeros((1, 2), np.int64), np.zeros((0, 2), np.int64))

    def says(link: Link) -> Iterator[list[Any]]:
        yield [RecordExperts(1, "dump"), RecordExperts(2, "start")]
        counts[0][0, 1] += 3
        recorder.stepped()
        yield [RecordExperts(3, "stop"), RecordExperts(4, "dump")]
        yield [Stop()]

    engine, link = OneStepEngine(), Link(says)
    recorder = ExpertRecorder(lambda: (counts[0].copy(), counts[1]), by_step=False)
    engine.experts = recorder  # type: ignore[attr-defined]
    engine_process.loop(engine, link, Grammars())  # type: ignore[arg-type]
    record = ExpertRecord(CountTable((1, 2), np.array([0, 3]).tobytes()), None, steps=1)
    assert link.heard == [Recorded(1, None), Done(2, None), Done(3, None), Recorded(4, record)]
    for message in link.heard:
        assert decode_from_engine(encode(message)) == message


def test_pages_that_are_given_back_after_a_transfer_are_told_of() -> None:
    """The transfer's own thread ends it; a round later the engine gives back its pages, though none of its
    requests runs any more."""
    used, transfers = 64, TransferStats(active=1)

    class Engine(OneStepEngine):
        def stats(self) -> EngineStats:
            return EngineStats(used_tokens=used)

    class Agent:
        stats = transfers

        def exchange(self, outputs: list[Output]) -> list[Output]:
            return []

    def says(link: Link) -> Iterator[list[Any]]:
        nonlocal used
        yield []
        transfers.active = 0
        yield []
        used = 0
        for _ in range(3):
            yield []
        yield [Stop()]

    link = Link(says)
    engine_process.loop(Engine(), link, Grammars(), Agent())  # type: ignore[arg-type]
    assert [message.stats.used_tokens for message in link.heard] == [64, 64, 0]


def test_an_engine_that_counts_nothing() -> None:
    def says(link: Link) -> Iterator[list[Any]]:
        yield [RecordExperts(1, "start"), RecordExperts(2, "stop"), Stop()]

    engine, link = OneStepEngine(), Link(says)
    engine.experts = ExpertRecorder(lambda: None, by_step=False)  # type: ignore[attr-defined]
    engine_process.loop(engine, link, Grammars())  # type: ignore[arg-type]
    refused, stopped = link.heard
    assert "does not count" in refused.error
    assert stopped == Done(2, None)


def test_one_that_finds_no_room_may_come_again() -> None:
    class Full(Grammars):
        def submit(self, constraint: Constraint, source: Source) -> Waiting:
            assert source == Source("127.0.0.1", "80")
            raise Busy("there is no room")

    def says(link: Link) -> Iterator[list[Any]]:
        yield [add_of([msgspec.structs.replace(NEW, client="127.0.0.1 80")])]
        yield [Stop()]

    _, heard = played(Full(), says)
    assert heard == [Rejected("r", "there is no room", busy=True)]


def test_it_gives_signs_of_life(monkeypatch: Any) -> None:
    """Else /health_generate would take it for dead, and so would the watchdog."""
    monkeypatch.setattr(engine_process, "IDLE_MS", 20)

    def says(link: Link) -> Iterator[list[Any]]:
        yield [add_of([NEW])]
        for _ in range(3000):
            if len(link.heard) == 3:
                break
            yield []
        assert len(link.heard) == 3
        yield [Abort("r")]
        for _ in range(60):
            yield []
        assert len(link.heard) == 3  # nothing waits
        yield [Stop()]

    _, heard = played(Grammars(), says)
    assert all(
        isinstance(message, StepOutputs) and message.outputs == message.tokens == [] for message in heard
    )
