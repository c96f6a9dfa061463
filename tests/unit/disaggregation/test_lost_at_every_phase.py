"""A prefill or a decode server that is lost at each phase of a transfer. The other one keeps no page and no
slot of memory, and the text is that of one engine."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from support.agents import Asked, Pair, alone, engine_of, pair
from support.transfers import TIMEOUT, Bootstrap, Network, until

from nextn.disaggregation.framing import PREFIX
from nextn.disaggregation.messages import AnyMessage, Begin, Done, Hello, Pages, Want
from nextn.disaggregation.page_copies import PageCopies
from nextn.request import SamplingParams

PARAMS = SamplingParams(max_tokens=6, temperature=1.0, seed=5, ignore_eos=True)
TOKENS = random.Random(1).choices(range(2, 4096), k=50)  # 4 pages, each computed in a step of its own
SLOTS = len(TOKENS) - 1

# The last message that passes, and the direction in which it goes.
PHASES: dict[str, tuple[str, Callable[[AnyMessage], bool]]] = {
    "Hello": ("up", lambda message: isinstance(message, Hello)),
    "Want": ("up", lambda message: isinstance(message, Want)),
    "Begin": ("up", lambda message: isinstance(message, Begin)),
    "first Pages": ("down", lambda message: isinstance(message, Pages)),
    "last Pages": ("down", lambda message: isinstance(message, Pages) and message.slots == SLOTS),
    "Done": ("down", lambda message: isinstance(message, Done)),
}


class Stopping(Network):
    """A network on which nothing passes after a certain message, until `cut`. lost: the server that will be
    lost; if it is the message's receiver, it does not get the message."""

    def __init__(self, port: int, phase: str, lost: str) -> None:
        self.way, self.is_last = PHASES[phase]
        self.delivers = (lost == "prefill") == (self.way == "down")
        self.stopped, self.was_cut = threading.Event(), threading.Event()
        super().__init__(port)

    def _pass(self, way: str, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                message, data = frame(a)
                last = not self.was_cut.is_set() and way == self.way and self.is_last(message)
                if not self.stopped.is_set() and (self.delivers or not last):
                    b.sendall(data)
                if last:
                    self.stopped.set()
        super()._pass(way, a, b)  # closes both

    def cut(self) -> None:
        self.was_cut.set()
        super().cut()
        self.stopped.clear()


def frame(end: socket.socket) -> tuple[AnyMessage, bytes]:
    """Reads one frame. Raises EOFError."""
    start = exactly(end, PREFIX.size)
    _, header, body, _, _ = PREFIX.unpack(start)
    head = exactly(end, header)
    return msgspec.msgpack.decode(head, type=AnyMessage), start + head + exactly(end, body)


def exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := end.recv(size - len(data))):
            raise EOFError
        data += more
    return data


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[Bootstrap]:
    made = Bootstrap()
    yield made
    made.close()


CASES = [
    (phase, lost, backend) for phase in PHASES for lost in ("prefill", "decode") for backend in ("tcp", "shm")
]


@pytest.mark.parametrize(("phase", "lost", "backend"), CASES)
def test_lost(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch, phase: str, lost: str, backend: str
) -> None:
    monkeypatch.setattr("nextn.disaggregation.layout.PIECE", 1)  # bytes: each page is a piece
    with monkeypatch.context() as patch:
        patch.setattr("support.agents.Network", lambda port: Stopping(port, phase, lost))
        both = Pair(engine(), engine(), bootstrap, backend)
    network: Any = both.network
    try:
        asked = both.asked("a", TOKENS, PARAMS)
        both.compute(asked)
        both.answer(asked)
        until(network.stopped.is_set, *map(Turns, both.halves))
        if lost == "prefill":
            lose_prefill(both, phase, asked)
        else:
            lose_decode(both, network)
        after(both)
    finally:
        both.close()


class Turns:
    """A half as an end that `until` serves."""

    def __init__(self, half: Any) -> None:
        self.half = half

    def fileno(self) -> int:
        return int(self.half.agent.fileno())

    def pump(self) -> None:
        self.half.turn()


def engine() -> Any:
    return engine_of(chunked_prefill_size=16, max_running_requests=4)


def lose_prefill(both: Pair, phase: str, asked: Asked) -> None:
    """The decode server computes what it has not received."""
    stats, arrived = both.decode.agent.stats, {"first Pages": 1, "last Pages": 4, "Done": 4}.get(phase, 0)
    until(lambda: stats.pages == arrived, *map(Turns, both.halves))
    both.restart_prefill(engine())
    both.forget_room(asked.room)
    both.settle()
    assert both.decode.texts["a"] == alone(TOKENS, PARAMS)
    assert stats.pages == arrived
    assert (stats.finished, stats.fallbacks) == ((1, 0) if phase == "Done" else (0, 1))


def lose_decode(both: Pair, network: Network) -> None:
    """The prefill server computes the prompt to its end, and frees its pages."""
    source: Any = both.prefill.agent._source  # type: ignore[attr-defined]
    both.restart_decode(engine())
    network.cut()
    if not source._transfers:  # nobody has asked for the pages
        source.timeout = 0.1
    both.settle()
    source.timeout = TIMEOUT
    assert both.prefill.texts["a"] == ([], "length", None)
    assert (both.prefill.agent.stats.finished, both.prefill.agent.stats.failed) == (0, 1)


def after(both: Pair) -> None:
    """Nothing is kept of the transfer, and the next one works."""
    nothing_kept(both)
    both.ask("b", TOKENS, PARAMS)
    finished = both.decode.agent.stats.finished
    both.settle()
    assert both.decode.texts["b"] == alone(TOKENS, PARAMS)
    assert both.decode.agent.stats.finished == finished + 1
    nothing_kept(both)


def nothing_kept(both: Pair) -> None:
    both.check_empty()
    source: Any = both.prefill.agent._source  # type: ignore[attr-defined]
    sink: Any = both.decode.agent._sink  # type: ignore[attr-defined]
    until(lambda: not any(source._turns.in_flight.values()))
    assert source._turns.in_flight.keys() <= source.connections
    assert sink._memories.keys() <= sink.connections
    if source.backend == "shm":
        memories = source._sinks.memories
        assert memories.keys() <= source.connections
        assert all(sorted(memory.free) == [*range(len(memory))] for memory in memories.values())


def test_a_page_that_is_damaged_in_shared_memory(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = PageCopies.read

    def damaged(copies: PageCopies, pages: Sequence[int], into: NDArray[np.uint8]) -> int:
        found = read(copies, pages, into)
        into[7] ^= 0x10
        return found

    monkeypatch.setattr(PageCopies, "read", damaged)
    with pair(bootstrap, backend="shm") as both:
        both.ask("a", TOKENS, PARAMS)
        both.settle()
        assert both.decode.texts["a"] == alone(TOKENS, PARAMS)
        assert (both.decode.agent.stats.pages, both.decode.agent.stats.fallbacks) == (0, 1)
        assert "a byte of a page was corrupted" in caplog.text
        nothing_kept(both)
