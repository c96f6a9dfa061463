"""A world whose ranks are processes, by torch.distributed.

    ranks = TorchGroup(rank, 4, "tcp://127.0.0.1:29500", "nccl")
    world = TorchWorld(ranks, groups=2, shards=4)

The host must know the sizes of an exchange, and waits for them. So an exchange cannot be part of a CUDA
graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.distributed.group import Alone, Group
from nextn.distributed.torch_group import TorchGroup
from nextn.distributed.world import Places, parts_of


class TorchWorld(Places):
    """ranks: all of them; each must make it with the same arguments. attention: the ranks of this rank's
    group. peers: those of its shard."""

    def __init__(self, ranks: TorchGroup, groups: int, shards: int) -> None:
        super().__init__(ranks.rank, ranks.size, groups, shards)
        self._ranks = ranks
        self.attention, self.peers = (_part(ranks, count) for count in (groups, shards))

    @property
    def carried_on(self) -> str:
        """The device whose arrays the ranks exchange without a copy."""
        return "cuda" if self._ranks.backend == "nccl" else "cpu"

    def of_all(self, own: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank. The host waits for them."""
        sent = torch.tensor([own], device=self.carried_on)
        found: list[list[int]] = torch.cat(self.exchange([sent] * self.size, [1] * self.size)).tolist()
        return found

    def exchange(self, parts: Sequence[Tensor], due: Sequence[int]) -> list[Tensor]:
        first = parts[0]
        width = math.prod(first.shape[1:]) * first.element_size()
        # As bytes, which every backend supports.
        raw = torch.cat(list(parts)).flatten().view(torch.uint8)
        sizes = [n * width for n in due]
        found = self._ranks.exchange(raw, [len(part) * width for part in parts], sizes).split(sizes)
        return [part.view(first.dtype).view(n, *first.shape[1:]) for n, part in zip(due, found, strict=True)]


def _part(ranks: TorchGroup, count: int) -> Group:
    """The group of this rank, if the ranks are divided into `count` parts."""
    if count == 1:
        return ranks
    return Alone() if count == ranks.size else ranks.part(parts_of(ranks.size, count))
