"""A world whose ranks are processes, by torch.distributed.

    ranks = TorchGroup(rank, 4, "tcp://127.0.0.1:29500", "nccl")
    world = TorchWorld(ranks, groups=2, shards=4)

An exchange tells the numbers of rows first, for which the host waits. So a CUDA graph cannot hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.distributed.group import Alone, Group
from nextn.distributed.torch_group import TorchGroup
from nextn.distributed.world import Places, parts_of


class TorchWorld(Places):
    """ranks: all of them. All make it alike. attention: the ranks of this one's group; peers: those of its
    shard."""

    def __init__(self, ranks: TorchGroup, groups: int, shards: int) -> None:
        super().__init__(ranks.rank, ranks.size, groups, shards)
        self._ranks = ranks
        self.attention, self.peers = (_part(ranks, count) for count in (groups, shards))

    def rows(self, own: int) -> Sequence[int]:
        return self.by_group(self._numbers([own] * self.size))

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        first, counts = parts[0], [len(part) for part in parts]
        theirs = self._numbers(counts)
        width = math.prod(first.shape[1:]) * first.element_size()
        # Bytes, which every backend carries.
        raw = torch.cat(list(parts)).flatten().view(torch.uint8)
        sizes = [n * width for n in theirs]
        found = self._ranks.exchange(raw, [n * width for n in counts], sizes).split(sizes)
        return [
            part.view(first.dtype).view(n, *first.shape[1:]) for n, part in zip(theirs, found, strict=True)
        ]

    def _numbers(self, own: Sequence[int]) -> list[int]:
        """own[r] goes to rank r -> what each rank has sent to this one."""
        device = "cuda" if self._ranks.backend == "nccl" else "cpu"
        sent, ones = torch.tensor(own, dtype=torch.int64, device=device), [1] * self.size
        found: list[int] = self._ranks.exchange(sent, ones, ones).tolist()
        return found


def _part(ranks: TorchGroup, count: int) -> Group:
    """This rank's of `count` parts."""
    return Alone() if count == ranks.size else ranks.part(parts_of(ranks.size, count))
