"""NIXL, the library that writes into another server's memory: whatever it does, a transfer ends, and no wrong
byte is taken."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from support.transfers import Bootstrap, Decode, Prefill, ends, identity, needs_nixl, prompt_of, until

from nextn.disaggregation.framing import Broken
from nextn.disaggregation.memory import check_backend
from nextn.disaggregation.nixl_agent import Agent

BIG = identity(layers=20, width=256)
SHORT = 0.5
Both = tuple[Prefill, Decode, Bootstrap]


@pytest.fixture
def both() -> Iterator[Both]:
    with ends(BIG, BIG, "nixl", SHORT) as both:
        yield both


def transfer(both: Both, room: int) -> tuple[str | None, str | None]:
    """What each end says in the end."""
    prefill, decode, port = both
    prefill.whole(f"p{room}", room, 3000)
    port.routes[room] = "127.0.0.1", prefill.source.port
    decode.want(f"d{room}", port.remote(room), 0, prompt_of(room, 3000))
    until(lambda: f"d{room}" in decode.ended and f"p{room}" in prefill.errors(), prefill, decode)
    return prefill.errors()[f"p{room}"], decode.ended[f"d{room}"].error


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'nextn\[nixl\]'"):
        check_backend("nixl")


@needs_nixl
def test_nothing_runs_while_nothing_is_under_way(both: Both) -> None:
    prefill, decode, _ = both
    for room in range(3):
        assert transfer(both, room) == (None, None)
    assert not prefill.source.needs_polling()
    assert not decode.sink.needs_polling()


@needs_nixl
def test_a_write_that_does_not_end(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Agent, "done", lambda self, handle: False)
        source, sink = transfer(both, 1)
    assert "gone: NIXL: a write took longer than 0.5 s" in str(source)
    assert "prefill server" in str(sink)
    assert transfer(both, 2) == (None, None)


@needs_nixl
@pytest.mark.parametrize("what", ["initialize_xfer", "transfer", "check_xfer_state"])
def test_a_library_that_fails(both: Both, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise RuntimeError("NIXL_ERR_BACKEND")

    inner = both[0].source._sinks._agent._agent  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        patch.setattr(inner, "transfer", lambda handle: "PROC")
        patch.setattr(inner, what, fail)
        source, sink = transfer(both, 1)
    assert "NIXL_ERR_BACKEND" in str(source)
    assert "prefill server" in str(sink)
    assert transfer(both, 2) == (None, None)


@needs_nixl
def test_a_byte_that_is_changed_by_a_write(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Agent.write

    def damaging(self: Agent, data: Any, peer: str, address: int) -> Any:
        data[17] ^= 1
        return write(self, data, peer, address)

    with monkeypatch.context() as patch:
        patch.setattr(Agent, "write", damaging)
        _, sink = transfer(both, 1)
    assert "a byte of a page was corrupted on the way" in str(sink)
    assert both[1].ended["d1"].slots == 0
    assert transfer(both, 2) == (None, None)


@needs_nixl
def test_memory_that_may_be_written_late_has_no_other_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region rests before it is used again, and is used for nothing but regions when its agent is gone."""
    agent = Agent()
    regions = [agent.region(2, 12_288) for _ in range(10)]
    addresses = [region.address for region in regions]
    for region in regions:
        agent.give_back(region)
    assert agent.region(2, 12_288) is regions[0]  # too many rest
    assert agent.region(2, 12_288) is regions[1]
    fresh = agent.region(2, 12_288)
    assert fresh.address not in addresses
    monkeypatch.setattr("nextn.disaggregation.nixl_agent.REST", -1.0)
    assert agent.region(2, 12_288) is regions[2]
    agent.close()
    del region, regions, agent
    gc.collect()
    other = Agent()
    assert other.region(2, 12_288).address == addresses[3]
    other.close()


@needs_nixl
def test_what_cannot_be_written_to() -> None:
    agent, other = Agent(), Agent()
    region, target = agent.region(2, 4096), other.region(2, 4096)
    with pytest.raises(Broken, match="NIXL"):
        agent.add(b"")
    with pytest.raises(Broken, match="NIXL"):
        agent.write(region[0], "nobody", target.address)
    peer = agent.add(other.metadata(target))
    assert agent.add(other.metadata(target)) == peer
    agent.remove(peer)
    with pytest.raises(Broken, match="NIXL"):
        agent.write(region[0], peer, target.address + (1 << 30))
    handle = agent.write(region[0], peer, target.address)  # it was added twice
    until(lambda: other.progress() or agent.done(handle))  # type: ignore[func-returns-value]
    agent.remove(peer)
    for each in (agent, other):
        each.close()
