"""Ranks on one machine: they meet, nobody waits for one that is gone, and what one writes all read."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from support.native_kernels import built_levels

from nextn.distributed.group import PeerGone
from nextn.distributed.memory import HEADER, Memory
from nextn.distributed.pulse import Pulse
from nextn.distributed.shared import SharedRanks, address
from nextn.ops.cpu.library import library

CROWDED = 72  # its offset in NxMeeting of csrc/ranks.h, bytes

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def together(size: int, task: Callable[[int], Any]) -> list[Any]:
    """task(rank) in a thread for each rank."""
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(task, range(size)))


def test_what_one_writes_all_read(memory: Memory) -> None:
    assert memory.mapped(2 * HEADER)[:4] == bytes(4)
    memory.mapped(2 * HEADER)[HEADER : HEADER + 4] = b"text"
    assert memory.mapped(2 * HEADER)[HEADER : HEADER + 4] == b"text"
    assert os.fstat(memory.file).st_size == 2 * HEADER


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not keep threads on cores")
def test_ranks_see_whether_they_share_a_core(memory: Memory) -> None:
    header = memory.mapped(HEADER)
    cores = sorted(os.sched_getaffinity(0))

    def run(rank: int) -> int:
        os.sched_setaffinity(0, {cores[min(rank * apart, len(cores) - 1)]})
        return int(library().nx_meet(address(header), 2, 100))

    for apart in (0, 1, 0):
        assert together(2, run) == [0, 0]
        (crowded,) = struct.unpack_from("I", header, CROWDED)
        assert bool(crowded) is (apart == 0 or len(cores) == 1)


@pytest.mark.parametrize(("size", "spins"), [(2, 4000), (2, 0), (3, 10), (8, 0)])
def test_nobody_passes_before_all_have_come(memory: Memory, size: int, spins: int) -> None:
    header = memory.mapped(HEADER)
    at, kernels, rounds = address(header), library(), 300
    came = [0] * size

    def run(rank: int) -> bool:
        sound = True
        for turn in range(1, rounds + 1):
            came[rank] = turn
            assert kernels.nx_meet(at, size, spins) == 0
            sound &= min(came) >= turn
        return sound

    assert all(together(size, run))


def test_who_waits_is_told_that_a_rank_is_gone(memory: Memory) -> None:
    ranks = [SharedRanks(rank, 3, memory, 3, 16) for rank in range(3)]
    at, kernels = address(ranks[0]._header), library()

    def run(rank: int) -> int:
        if rank == 2:
            time.sleep(0.05)  # the others wait by then, or come later: both must hold
            ranks[2].give_up("rank 2 is gone")
            return 1
        return int(kernels.nx_meet(at, 3, 10))

    assert together(3, run) == [1, 1, 1]
    assert kernels.nx_meet(at, 3, 10) == 1, "nor may anybody wait later"
    assert str(ranks[2].gone()) == "rank 2 is gone"
    assert isinstance(ranks[0].gone(), PeerGone)


def test_a_rank_that_is_silent_is_noticed(memory: Memory) -> None:
    ranks = [SharedRanks(rank, 3, memory, 3, 16) for rank in range(3)]
    lost: list[tuple[Any, ...]] = []
    noticed = threading.Event()

    def note(*what: Any) -> None:
        lost.append(what)
        noticed.set()

    first, other = Pulse(ranks[0], note, silent=1.5), Pulse(ranks[1], note, silent=60.0)
    assert noticed.wait(30), "rank 2 never beats"
    assert lost == [(2, "does not answer")]
    first.stop()
    other.stop()
    assert ranks[0].beats()[1]
    assert ranks[1].beats()[0]


def test_what_was_before_does_not_count(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that took long to start has as much time as others when less is expected of it."""
    now = [0.0]
    monkeypatch.setattr("nextn.distributed.pulse.time", SimpleNamespace(monotonic=lambda: now[0]))
    ranks = [SharedRanks(rank, 2, memory, 2, 16) for rank in range(2)]
    lost: list[tuple[Any, ...]] = []

    def rounds() -> None:
        count = ranks[1].beats()[0] or 0
        while (ranks[1].beats()[0] or 0) < count + 3:
            time.sleep(0.02)

    pulse = Pulse(ranks[0], lambda *what: lost.append(what), silent=60.0)
    now[0] = 30.0
    rounds()
    pulse.expect(20.0)
    rounds()
    assert not lost
    now[0] = 39.0
    rounds()
    now[0] = 48.0
    rounds()
    assert not lost
    now[0] = 51.0
    while not lost:
        time.sleep(0.02)
    pulse.stop()
    assert lost == [(1, "does not answer")]


def test_who_beats_is_not_lost(memory: Memory) -> None:
    ranks = [SharedRanks(rank, 2, memory, 2, 16) for rank in range(2)]
    lost: list[tuple[Any, ...]] = []
    pulses = [Pulse(each, lambda *what: lost.append(what), silent=20.0) for each in ranks]
    while min(ranks[0].beats()[1] or 0, ranks[1].beats()[0] or 0) < 3:
        time.sleep(0.05)
    for pulse in pulses:
        pulse.stop()
    assert not lost
