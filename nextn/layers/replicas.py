"""Which shard computes a row's expert, where a world shares the experts out and some have replicas.

    N  logical experts: those of the model      P  physical experts: logical ones and spare replicas
    E  shards, of which shard s has physical experts s * P / E .. (s + 1) * P / E - 1

N = 4, P = 6 and E = 2, with the physical experts 0 1 0 | 2 3 0: rows of expert 0 go to the replicas in turns,
two of three to shard 0. It has equal ones in two places of its memory, and computes with the last. All
replicas have the same weights, so a text does not depend on any of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.distributed.placement import Ints, Placement, check_sizes
from nextn.distributed.world import World


@dataclass(frozen=True)
class ExpertParallel:
    """How the target's routed experts are shared out.

    placement: of its layers with routed experts; by default each expert is there once, in their order.
    static: which replica a row goes to depends on its group, not on its number in the batch.
    """

    world: World
    placement: Placement | None = None
    static: bool = False

    def replicas(self, layer: int, layers: int, experts: int, device: torch.device) -> Replicas:
        """layer: of the `layers` that have routed experts. Raises ValueError for a placement that is not of
        so many layers and experts, or not for so many shards."""
        world, found = self.world, self.placement or Placement.trivial(layers, experts)
        if found.replicas.shape != (layers, experts):
            raise ValueError(
                f"a placement of {found.experts} experts in {found.layers} layers; the model has {experts} "
                f"in {layers}"
            )
        check_sizes(experts, found.slots, world.shards)
        group = world.group if self.static else None
        return Replicas(found.physical[layer], experts, world.shards, group, device)


class Replicas:
    """One layer's. physical [P]: the logical expert of each. held: of each shard, its experts in their
    places."""

    def __init__(
        self, physical: Ints, experts: int, shards: int, group: int | None, device: torch.device
    ) -> None:
        self.held: list[list[int]] = physical.reshape(shards, -1).tolist()
        self._group, self._sizes = group, (experts, shards)
        found: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
        for shard, part in enumerate(self.held):
            last = {e: place for place, e in enumerate(part)}
            for e in part:
                found[e].append((shard, last[e]))
        most = max(map(len, found))
        table = [places + places[:1] * (most - len(places)) for places in found]
        self._table = torch.tensor(table, device=device)  # [N, most, 2]
        self._counts = torch.tensor(list(map(len, found)), device=device)

    def placed(self, physical: Ints) -> Replicas:
        """The same where experts have moved."""
        return Replicas(physical, *self._sizes, self._group, self._table.device)

    def choose(self, ids: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """ids [n, K], logical experts of rows `first` and on -> the shards that compute them, and their
        places in what those hold. Both [n, K] int64."""
        turn = torch.arange(first, first + len(ids), device=ids.device)[:, None]
        if self._group is not None:
            turn = torch.full_like(turn, self._group)
        shard, place = self._table[ids, turn % self._counts[ids]].unbind(-1)
        return shard, place
