"""A world whose ranks are threads of one process.

found = run_world(4, 2, 2, lambda world: model_of(world, world.attention).forward(...))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from support.thread_ranks import TIMEOUT, Meeting, ThreadGroup, run_threads
from torch import Tensor

from nextn.distributed.world import Places, parts_of

Found = TypeVar("Found")


class ThreadWorld(Places):
    """One rank of `run_world`. Raises AssertionError if the ranks' calls differ.

    attention: the ranks of its group. peers: the ranks of its shard.
    """

    def __init__(self, rank: int, groups: int, shards: int, meetings: _Meetings) -> None:
        super().__init__(rank, len(meetings.all.calls), groups, shards)
        self._meeting = meetings.all
        self.attention = ThreadGroup(rank % (self.size // groups), meetings.attention[self.group])
        self.peers = ThreadGroup(rank % self.slices, meetings.peers[self.shard])

    def exchange(self, parts: Sequence[Tensor], due: Sequence[int]) -> list[Tensor]:
        def read(calls: list[list[Tensor]]) -> list[Tensor]:
            assert all(len(call) == self.size for call in calls)
            assert len({(part.shape[1:], part.dtype) for call in calls for part in call}) == 1
            found = [call[self.rank].clone(memory_format=torch.contiguous_format) for call in calls]
            assert list(map(len, found)) == list(due)
            return found

        return self._meeting.together(self.rank, list(parts), read)


class _Meetings:
    def __init__(self, size: int, groups: int, shards: int, timeout: float) -> None:
        self.all = Meeting(size, timeout)
        self.attention, self.peers = (
            [Meeting(len(ranks), timeout) for ranks in parts_of(size, count)] for count in (groups, shards)
        )

    def end(self, rank: int) -> None:
        for meeting in (self.all, *self.attention, *self.peers):
            meeting.end(rank)


def run_world(
    size: int, groups: int, shards: int, compute: Callable[[ThreadWorld], Found], timeout: float = TIMEOUT
) -> list[Found]:
    """Like `support.thread_ranks.run_ranks`, with compute(world)."""
    Places(0, size, groups, shards)
    meetings = _Meetings(size, groups, shards, timeout)
    return run_threads(size, lambda rank: compute(ThreadWorld(rank, groups, shards, meetings)), meetings.end)
