"""Ranks that are threads of one process. Only the transport of data differs from real ranks.

    found = run_ranks(2, lambda group: model_of(group).forward(...))

If a rank raises an exception, the others raise PeerGone when they wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from nextn.distributed.group import PeerGone

TIMEOUT = 60.0  # seconds that a rank waits for the others

Found = TypeVar("Found")


class Meeting:
    """A barrier of all ranks with data. calls: the data of each rank. gone: the first rank that has ended."""

    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.calls: list[Any] = [None] * size
        self.timeout = timeout
        self.gone: int | None = None

    def together(self, rank: int, call: Any, read: Callable[[list[Any]], Found]) -> Found:
        """Calls read(the data of all ranks) before any rank continues."""
        self.calls[rank] = call
        self._wait()
        found = read(list(self.calls))
        self._wait()  # wait until all have read
        self.calls[rank] = None
        return found

    def end(self, rank: int) -> None:
        """The rank has ended: the others raise PeerGone in their current or next call."""
        if self.gone is None:
            self.gone = rank
        self.barrier.abort()

    def _wait(self) -> None:
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            if self.gone is None:
                absent = [rank for rank, call in enumerate(self.calls) if call is None]
                raise PeerGone(f"ranks {absent} did not come within {self.timeout:g} s") from None
            raise PeerGone(f"rank {self.gone} has ended") from None


class ThreadGroup:
    """One rank of `run_ranks`. Raises AssertionError if the ranks' calls differ."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self._meeting = rank, meeting

    @property
    def size(self) -> int:
        return self._meeting.barrier.parties

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        assert whole.is_contiguous()

        def read(calls: list[tuple[Tensor, tuple[int, ...]]]) -> None:
            assert {(t.shape, t.dtype, b) for t, b in calls} == {(whole.shape, whole.dtype, tuple(bounds))}
            for rank, (theirs, _) in enumerate(calls):
                if rank != self.rank:
                    part = slice(bounds[rank], bounds[rank + 1])
                    whole[:, part] = theirs[:, part]

        self._meeting.together(self.rank, (whole, tuple(bounds)), read)


def run_ranks(size: int, compute: Callable[[ThreadGroup], Found], timeout: float = TIMEOUT) -> list[Found]:
    """Runs compute(group) for each rank in its own thread, and returns the results by rank. Raises the
    exception that a rank raised; PeerGone only if no rank raised another one."""
    meeting = Meeting(size, timeout)
    return run_threads(size, lambda rank: compute(ThreadGroup(rank, meeting)), meeting.end)


def run_threads(size: int, compute: Callable[[int], Found], end: Callable[[int], None]) -> list[Found]:
    """Like `run_ranks`. end(rank): called when the rank has raised an exception."""
    found: dict[int, Found] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = compute(rank)
        except BaseException as e:
            errors.append(e)
            end(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, PeerGone)), errors[0])
    return [found[rank] for rank in range(size)]
