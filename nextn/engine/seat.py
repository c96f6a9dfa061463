"""A rank's place among all that share the routed experts of a model."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.distributed.memory import Memory
from nextn.distributed.mesh import MeshRanks


@dataclass(frozen=True)
class Seat:
    """group: of attention. rank: in that group. memory: of all ranks of all groups, on one machine; everyone:
    this rank among them, on several. by_torch: the model is torch's, whose ranks exchange by
    torch.distributed."""

    group: int
    rank: int
    memory: Memory | None = None
    everyone: MeshRanks | None = None
    by_torch: bool = False
