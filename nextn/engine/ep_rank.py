"""Which of the ranks that share the routed experts of a model this is, and its connections to them."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.distributed.memory import Memory
from nextn.distributed.mesh import MeshRanks


@dataclass(frozen=True)
class EPRank:
    """group: number of the attention group. rank: in that group. memory: shared by all ranks of all groups,
    on one machine. everyone: this rank's connections to all ranks, on several machines. by_torch: the torch
    model, whose ranks exchange data by torch.distributed."""

    group: int
    rank: int
    memory: Memory | None = None
    everyone: MeshRanks | None = None
    by_torch: bool = False
