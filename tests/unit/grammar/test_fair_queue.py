"""Whose constraint is next, and who makes way where too many wait."""

from __future__ import annotations

import pytest

from nextn.grammar import fair_queue
from nextn.grammar.fair_queue import FairQueue, Source
from nextn.grammar.limits import Busy


def put(queue, source, *items, size=1):
    return [out for item in items for out in queue.put(Source.of(source), item, size)]


def taken(queue):
    return [queue.take() for _ in range(len(queue))]


def test_hosts_take_turns_and_their_connections_do():
    queue = FairQueue()
    put(queue, "a 1", "a1", "a1'", "a1''")
    put(queue, "a 2", "a2", "a2'")
    put(queue, "b 1", "b", "b'")
    assert taken(queue) == ["a1", "b", "a2", "b'", "a1'", "a2'", "a1''"]
    assert not queue


def test_one_can_be_taken_out():
    queue = FairQueue()
    put(queue, "a 1", "x", "y")
    put(queue, "b 1", "z")
    assert queue.remove("x")
    assert not queue.remove("x")
    assert queue.remove("z")
    assert taken(queue) == ["y"]


def test_of_one_source_all_can_be_taken_out():
    queue = FairQueue()
    put(queue, "a 1", "x", "y")
    put(queue, "a 2", "z")
    one, other, none = Source.of("a 1"), Source.of("a 2"), Source.of("b 1")
    assert [queue.waits(source) for source in (one, other, none)] == [True, True, False]
    assert [queue.others_wait(source) for source in (one, other, none)] == [True] * 3
    assert queue.take_all(none) == []
    assert queue.take_all(one) == ["x", "y"]
    assert [queue.waits(source) for source in (one, other)] == [False, True]
    assert [queue.others_wait(source) for source in (one, other)] == [True, False]
    assert taken(queue) == ["z"]
    assert queue._count == queue._bytes == 0


def test_of_one_connection_so_many_wait(monkeypatch):
    monkeypatch.setattr(fair_queue, "PER_SOURCE", 2)
    queue = FairQueue()
    put(queue, "a 1", "x", "y")
    with pytest.raises(Busy, match="2 constraints of this connection wait"):
        put(queue, "a 1", "z")
    put(queue, "a 2", "z")
    assert taken(queue) == ["x", "z", "y"]


def test_of_one_connection_so_many_bytes_wait_or_one(monkeypatch):
    monkeypatch.setattr(fair_queue, "BYTES_PER_SOURCE", 10)
    queue = FairQueue()
    put(queue, "a 1", "x", size=20)
    with pytest.raises(Busy, match="1 constraints of this connection wait"):
        put(queue, "a 1", "y")
    assert taken(queue) == ["x"]
    put(queue, "a 1", "y")


@pytest.mark.parametrize(("name", "most"), [("PER_ALL", 4), ("BYTES_PER_ALL", 40)])
def test_who_has_most_waiting_makes_way(monkeypatch, name, most):
    monkeypatch.setattr(fair_queue, name, most)
    queue = FairQueue()
    put(queue, "a 1", "x", size=10)
    put(queue, "a 2", "y", "z", size=10)
    put(queue, "b 1", "b", size=10)
    assert put(queue, "c 1", "c", size=10) == ["z"]
    assert put(queue, "b 1", "b'", size=10) in (["x"], ["y"])
    with pytest.raises(Busy, match="4 constraints wait"):
        put(queue, "b 1", "b''", size=10)
    assert len(queue) == 4


def test_nothing_is_left_of_those_that_had_their_turn():
    queue = FairQueue()
    for i in range(100):
        put(queue, f"{i} {i}", i)
    assert taken(queue) == list(range(100))
    assert not queue._hosts
    assert queue._count == queue._bytes == 0
