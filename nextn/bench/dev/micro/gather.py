"""Measures how long two ranks on this machine take to gather a row through shared memory, as in a step.

Each rank writes its half of the row, waits until the other has written, reads the other half, and waits again
before it writes the next row. The native kernels write and read in place, without these copies, so their
gather takes at most this time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

from nextn.distributed.life import die_with_parent
from nextn.distributed.memory import HEADER, Memory
from nextn.distributed.shared import address, spins
from nextn.ops.cpu.library import library

BURST = 200  # gathers between two readings of the clock
BURSTS, SECONDS = 60, 1.0  # limits of the measurement; it ends when one is reached


class Gather(NamedTuple):
    """bytes: size of the row. seconds: time of one gather, the median over bursts."""

    bytes: int
    seconds: float


def measure_gather(row: int) -> Gather:
    """Measures a gather of a row of `row` bytes. Raises NoLibrary if the kernels are not built, and
    RuntimeError if the second process does not start."""
    library()
    spawn = multiprocessing.get_context("spawn")
    memory, (ours, theirs) = Memory(), spawn.Pipe()
    other = spawn.Process(target=_other, args=(memory, theirs, row, BURST, os.getpid()), daemon=True)
    other.start()
    theirs.close()
    try:
        ours.recv()  # the second rank runs; otherwise `fill` would wait forever
        return Gather(row, median(fill(memory, 0, row, BURST)[1:]))
    except EOFError:
        raise RuntimeError("the second rank did not start") from None
    finally:
        other.kill()
        other.join()
        ours.close()
        memory.close()


def _other(memory: Memory, link: Connection, row: int, burst: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both ranks, and rank 0 waits for this one
    die_with_parent(parent)
    library()
    link.send(None)
    fill(memory, 1, row, burst)


def fill(memory: Memory, rank: int, row: int, burst: int) -> list[float]:
    """Gathers rows and returns the seconds of a gather in each burst. The first burst is warm-up. Both ranks
    call it."""
    half, goes_on = row // 2, HEADER + row  # a byte after the row: whether rank 0 wants another burst
    view, kernels = memory.mapped(goes_on + 1), library()
    at, looks = address(view), spins(2)
    own, others = (slice(HEADER + r * half, HEADER + (r + 1) * half) for r in (rank, 1 - rank))
    data, found = bytes([rank]) * half, []
    started = time.perf_counter()
    while True:
        begin = time.perf_counter()
        for _ in range(burst):
            view[own] = data
            kernels.nx_meet(at, 2, looks)
            data = view[others]
            kernels.nx_meet(at, 2, looks)
        found.append((time.perf_counter() - begin) / burst)
        assert data == bytes([rank]) * half, "a rank read what the other had not written yet"
        if rank == 0:
            view[goes_on] = len(found) < 2 or (
                len(found) <= BURSTS and time.perf_counter() - started < SECONDS
            )
        kernels.nx_meet(at, 2, looks)
        if not view[goes_on]:
            return found
