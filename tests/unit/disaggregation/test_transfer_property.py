"""Whatever both engines and the network do, and in whatever order: no page is wrong or out of order, and each
request ends once."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.transfers import BACKENDS, Bootstrap, Decode, Network, Prefill, ends, identity, prompt_of, until

ROOMS = 3
PIECES = identity(layers=32, width=512)  # of 8 pages
PROMPTS = (5, 90, 331)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, ROOMS - 1), st.sampled_from(PROMPTS)),
        st.tuples(st.just("want"), st.integers(0, ROOMS - 1), st.integers(0, 30)),
        st.tuples(st.just("begin"), st.integers(0, ROOMS - 1), st.just(0)),
        st.tuples(st.just("begin"), st.integers(0, ROOMS - 1), st.just(0)),
        st.tuples(st.just("committed"), st.integers(0, ROOMS - 1), st.integers(0, 331)),
        st.tuples(st.just("finished"), st.integers(0, ROOMS - 1), st.just(0)),
        st.tuples(st.just("withdraw"), st.integers(0, ROOMS - 1), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, ROOMS - 1), st.just(0)),
        st.tuples(st.just("prefill"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("decode"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.just(0)),
        st.tuples(st.just("cut"), st.just(0), st.just(0)),
        st.tuples(st.just("corrupt"), st.integers(0, 2_000_000), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@pytest.fixture(scope="module", params=BACKENDS)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Prefill, Decode, Bootstrap, Network]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nextn.disaggregation.layout.PIECE", 1 << 20)
        yield from _servers(request.param)


def _servers(backend: str) -> Iterator[tuple[Prefill, Decode, Bootstrap, Network]]:
    with ends(PIECES, PIECES, backend) as (prefill, decode, port):
        network = Network(prefill.source.port)
        yield prefill, decode, port, network
        network.close()


class Play:
    """names: of the requests that are under way, by room; each name is used once."""

    runs = 0

    def __init__(self, prefill: Prefill, decode: Decode, port: Bootstrap, network: Network) -> None:
        self.prefill, self.decode, self.port, self.network = prefill, decode, port, network
        Play.runs += 1
        self.base = Play.runs * ROOMS
        self.lengths: dict[int, int] = {}
        self.offered: dict[int, str] = {}
        self.wanted: dict[int, str] = {}
        self.expected: set[str] = set()
        self.pending: dict[str, int] = {}  # announced, and what it has when it begins
        self.names = 0

    def step(self, what: str, i: int, n: int) -> None:
        source, room = self.prefill.source, self.base + i
        rid = self.offered.get(room, "")
        if rid in self.prefill.errors():
            rid = ""
        if what == "offer" and not rid:
            self.names += 1
            self.offered[room] = f"{room}.{self.names}"
            n = self.lengths.setdefault(room, n)
            self.port.routes[room] = "127.0.0.1", self.network.port
            self.prefill.offer(self.offered[room], room, prompt_of(room, n))
        elif what == "committed" and rid:
            source.committed(rid, min(n, self.lengths[room]))
        elif what == "finished" and rid:
            source.finished(rid, self.lengths[room], 0)
        elif what == "withdraw" and rid:
            source.withdraw(rid)
            del self.offered[room]
        elif what == "want" and room in self.lengths:
            self.want(room, n)
        elif what == "begin" and self.wanted.get(room) in self.pending:
            rid = self.wanted[room]
            self.decode.begin(rid, self.pending.pop(rid))
        elif what == "cancel" and self.wanted.get(room, "-") not in {"-", *self.decode.ended}:
            self.decode.sink.cancel(self.wanted[room])
            self.expected.discard(self.wanted.pop(room))
        elif what == "prefill":
            self.prefill.pump(i)
        elif what == "decode":
            self.decode.pump(i << 20)
        elif what == "wait":
            select.select([source, self.decode.sink], [], [], 0.01)
        elif what == "cut":
            self.network.cut()
        elif what == "corrupt":
            self.network.corrupt_at["down"] = self.network.passed["down"] + i

    def want(self, room: int, n: int) -> None:
        length = self.lengths[room]
        have = min(n, length // 4) * 4
        self.names += 1
        rid = f"{room}.{self.names}"
        self.wanted[room] = rid
        self.expected.add(rid)
        self.pending[rid] = have
        self.decode.announce(rid, self.port.remote(room), prompt_of(room, length))

    def end(self) -> None:
        source = self.prefill.source
        self.network.corrupt_at["down"] = -1
        for room, rid in self.offered.items():
            source.finished(rid, self.lengths[room], 0)
        for rid, have in self.pending.items():
            self.decode.begin(rid, have)
        for room in {*self.wanted} - {*self.offered}:
            rid = self.wanted[room]
            if rid not in self.decode.ended:
                self.decode.sink.cancel(rid)
                self.expected.discard(rid)
        until(lambda: self.expected <= {*self.decode.ended}, self.prefill, self.decode)
        for room, rid in self.offered.items():
            offer = source._rooms.get(room)
            if offer is not None and offer.connection is None:  # nobody asks any more
                source.withdraw(rid)
        until(lambda: source.stats.active == 0, self.prefill, self.decode)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_order(
    servers: tuple[Prefill, Decode, Bootstrap, Network], steps: list[tuple[str, int, int]]
) -> None:
    play = Play(*servers)
    for step in steps:
        play.step(*step)
    play.end()
    ended = [play.decode.ended[rid] for rid in play.expected]
    for each in ended:
        room = int(each.rid.split(".")[0])
        assert each.error is not None or each.slots == play.lengths[room]
    until(lambda: not play.prefill.source._transfers and not play.decode.sink._transfers, *servers[:2])
    until(lambda: not any(play.prefill.source._turns.in_flight.values()), *servers[:2])
    assert play.decode.sink._undelivered == 0
    assert play.decode.sink.stats.active == 0
