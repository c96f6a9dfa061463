"""What engines of several groups share: each wakes the others, and nothing of it is left."""

from __future__ import annotations

import multiprocessing
import os
import select

from hypothesis import given
from hypothesis import strategies as st
from support.scripted_groups import answer

from nextn.distributed.place import places

SPAWN = multiprocessing.get_context("spawn")


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=8))
def test_who_is_woken(groups: int, callers: list[int]) -> None:
    callers = [caller % groups for caller in callers]
    with places(groups) as made:
        assert [(place.group, place.groups) for place in made] == [(i, groups) for i in range(groups)]
        for caller in callers:
            made[caller].wake_others(7)
        for place in made:
            called = any(caller != place.group for caller in callers)
            readable = select.select([place], [], [], 0)[0]
            assert (readable == [place]) == called
            assert place.woken(6) == place.woken(7) == called
            assert not place.woken(8)  # which it is yet to be woken for
            assert not select.select([place], [], [], 0)[0]


def test_nobody_waits_for_one_that_does_not_read() -> None:
    with places(2) as (first, second):
        for _ in range(10_000):
            first.wake_others(0)
        assert second.woken(0)
        second.wake.close()
        first.wake_others(1)


def test_in_another_process() -> None:
    here, there = SPAWN.Pipe()
    with places(2) as (own, others):
        board = own.memory.mapped(4096)
        process = SPAWN.Process(target=answer, args=(others, there))
        process.start()
        with here, there:
            assert here.recv() == b"here"
            own.wake_others(0)
            process.join()
        assert process.exitcode == 0
        assert own.woken(0)
        assert board[:2] == b"\0\7"
        board.close()
        process.close()


def test_nothing_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    with places(3):
        assert len(os.listdir("/proc/self/fd")) == len(before) + 7
    assert os.listdir("/proc/self/fd") == before
