"""Ranks that are threads of one process, for tests: everything but the way that the bits take.

    found = run_ranks(2, lambda group: model_of(group).forward(...))

A rank that raises makes the others raise PeerGone where they wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from nextn.distributed.group import PeerGone

TIMEOUT = 60.0  # seconds that a rank waits for the others

Found = TypeVar("Found")


class _Meeting:
    """Where all ranks come together. calls: of each rank, what it has put down; gone: who has ended."""

    def __init__(self, size: int, timeout: float) -> None:
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.calls: list[tuple[Tensor, tuple[int, ...]] | None] = [None] * size
        self.timeout = timeout
        self.gone: int | None = None

    def wait(self) -> None:
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            if self.gone is None:
                absent = [rank for rank, call in enumerate(self.calls) if call is None]
                raise PeerGone(f"ranks {absent} did not come within {self.timeout:g} s") from None
            raise PeerGone(f"rank {self.gone} has ended") from None


class ThreadGroup:
    """One rank of `run_ranks`. AssertionError where the ranks' calls differ."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self._meeting = rank, meeting

    @property
    def size(self) -> int:
        return self._meeting.barrier.parties

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        assert whole.is_contiguous()
        calls = self._meeting.calls
        calls[self.rank] = whole, tuple(bounds)
        self._meeting.wait()
        others = [call for call in calls if call is not None]
        assert {(t.shape, t.dtype, b) for t, b in others} == {(whole.shape, whole.dtype, tuple(bounds))}
        for rank, (theirs, _) in enumerate(others):
            if rank != self.rank:
                mine = slice(bounds[rank], bounds[rank + 1])
                whole[:, mine] = theirs[:, mine]
        self._meeting.wait()  # until all have read
        calls[self.rank] = None

    def close(self) -> None:
        """The rank has ended: the others raise PeerGone in their next gather, or in the one they are in."""
        if self._meeting.gone is None:
            self._meeting.gone = self.rank
        self._meeting.barrier.abort()


def run_ranks(size: int, compute: Callable[[ThreadGroup], Found], timeout: float = TIMEOUT) -> list[Found]:
    """compute(group) of each rank, in a thread of its own -> what they return, by rank. Raises what a rank
    raised; PeerGone only if no rank raised anything else."""
    meeting = _Meeting(size, timeout)
    found: dict[int, Found] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        group = ThreadGroup(rank, meeting)
        try:
            found[rank] = compute(group)
        except BaseException as e:
            errors.append(e)
            group.close()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, PeerGone)), errors[0])
    return [found[rank] for rank in range(size)]
