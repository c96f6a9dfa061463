"""A rank's place among all that share the routed experts of a model."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.distributed.memory import Memory


@dataclass(frozen=True)
class Seat:
    """group: of attention. rank: in that group. memory: of all ranks of all groups."""

    group: int
    rank: int
    memory: Memory
