"""Pages of prompts go from a source to a sink, as they are computed."""

from __future__ import annotations

import pytest
from support.transfers import BACKENDS, Prefill, ends, identity, prompt_of, until


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("n", "have"), [(1, 0), (4, 0), (5, 0), (23, 0), (23, 8), (23, 20), (8, 8), (700, 16)]
)
def test_a_prompt_that_is_there(backend: str, n: int, have: int) -> None:
    with ends(backend=backend) as (prefill, decode, port):
        prefill.whole("p", 7, n, cached=3)
        port.routes[7] = "127.0.0.1", prefill.source.port
        decode.want("d", port.remote(7), have, prompt_of(7, n))
        until(lambda: "d" in decode.ended and bool(prefill.given), prefill, decode)
        assert decode.ended["d"] == ("d", n, 3, None)
        assert prefill.errors() == {"p": None}
        for stats in (prefill.source.stats, decode.sink.stats):
            assert (stats.active, stats.finished, stats.failed) == (0, 1, 0)
            assert stats.pages == -(-n // 4) - have // 4
            assert stats.bytes == stats.pages * 3 * 4 * 10 * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_pages_go_out_as_they_are_computed(backend: str) -> None:
    with ends(backend=backend) as (prefill, decode, port):
        tokens = prompt_of(1, 23)
        decode.want("d", port.remote(1), 4, tokens)  # the port does not know it yet
        until(lambda: len(port.asked) > 1, prefill, decode)
        port.routes[1] = "127.0.0.1", prefill.source.port
        until(lambda: bool(prefill.source._early), prefill, decode)  # nor does the engine
        prefill.offer("p", 1, tokens)
        for committed, arrived in ((3, 4), (9, 8), (11, 8), (21, 20), (9, 20)):  # retracted at last
            prefill.source.committed("p", committed)
            until(lambda least=arrived: decode.slots["d"] >= least, prefill, decode)  # type: ignore[misc]
            assert decode.slots["d"] == arrived
        prefill.source.finished("p", 23, 2)
        until(lambda: bool(decode.ended and prefill.given), prefill, decode)
        assert decode.ended["d"] == ("d", 23, 2, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_rooms_of_two_sources(backend: str) -> None:
    what = identity(layers=20, width=256)
    with ends(what, what, backend) as (prefill, decode, port):
        second = Prefill(what, backend)
        both = (prefill, second)
        for room in range(40):
            port.routes[room] = "127.0.0.1", both[room % 2].source.port
            decode.want(f"d{room}", port.remote(room), 0, prompt_of(room, 300 + room))
            both[room % 2].whole(f"p{room}", room, 300 + room)
        until(lambda: len(decode.ended) == 40 and sum(len(p.given) for p in both) == 40, *both, decode)
        assert {each.error for each in decode.ended.values()} == {None}
        assert not {*prefill.errors().values(), *second.errors().values()} - {None}
        until(lambda: set(prefill.source._turns.in_flight.values()) <= {0}, *both, decode)
        second.source.close()


def test_each_request_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.disaggregation.layout.PIECE", 1 << 20)
    with ends() as (prefill, decode, port):
        for room in range(3):
            port.routes[room] = "127.0.0.1", prefill.source.port
            prefill.whole(f"p{room}", room, 30_000)
            decode.want(f"d{room}", port.remote(room), 0, prompt_of(room, 30_000))
        until(lambda: len(prefill.source._turns.offers) == 3, decode)
        pieces = [prefill.source.wanted() for _ in range(6)]
        assert sorted(each.rid for each in pieces if each) == ["p0", "p0", "p1", "p1", "p2", "p2"]
        assert len({each.rid for each in pieces[:3] if each}) == 3


def test_what_is_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.disaggregation.layout.PIECE", 1 << 20)
    monkeypatch.setattr("nextn.disaggregation.turns.CONNECTION_IN_FLIGHT", 3 << 20)
    monkeypatch.setattr("nextn.disaggregation.sink.UNDELIVERED", 4 << 20)
    what, n = identity(layers=20, width=256), 7_000  # 70 MiB
    with ends(what, what) as (prefill, decode, port):
        port.routes[0] = "127.0.0.1", prefill.source.port
        prefill.whole("p", 0, n)
        decode.want("d", port.remote(0), 0, prompt_of(0, n))
        until(
            lambda: decode.sink.paused and prefill.source._turns.skipped_for_room, prefill
        )  # the sink's engine does nothing
        assert decode.sink._undelivered <= 5 << 20
        assert 0 < sum(prefill.source._turns.in_flight.values()) <= 3 << 20
        until(lambda: bool(decode.ended and prefill.given), prefill, decode)
        assert decode.ended["d"] == ("d", n, 0, None)
        assert decode.sink._undelivered == 0
