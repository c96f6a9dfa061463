"""Chooses the shard that computes a row's expert, if a world shares the experts and some have replicas.

    N  logical experts: those of the model      P  physical experts: logical ones and spare replicas
    E  shards; shard s has physical experts s * P / E .. (s + 1) * P / E - 1

Example: N = 4, P = 6, E = 2, with physical experts 0 1 0 | 2 3 0. Rows of expert 0 go to its replicas in
turn: two of three rows to shard 0. Shard 0 has expert 0 in two slots, and computes with the last. All
replicas have the same weights, so the choice does not change texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.distributed.placement import Ints, Placement, check_sizes
from nextn.distributed.world import World


@dataclass(frozen=True)
class ExpertParallel:
    """How the ranks of a world share the target's routed experts.

    placement: of the layers with routed experts; by default each expert exists once, in order.
    static: a row's replica depends on its group; otherwise on its index in the batch.
    """

    world: World
    placement: Placement | None = None
    static: bool = False

    def replicas(self, layer: int, layers: int, experts: int, device: torch.device) -> Replicas:
        """The replicas of one layer. layer: index among the `layers` layers with routed experts. Raises
        ValueError if the placement does not fit the number of layers, experts or shards."""
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
    """The replicas of one layer's experts. physical [P]: the logical expert in each slot. held: for each
    shard, the experts in its slots."""

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
        """The replicas after experts have moved."""
        return Replicas(physical, *self._sizes, self._group, self._table.device)

    def choose(self, ids: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """ids [n, K], logical experts of the rows from `first` on -> (the shards that compute them, their
        slots in these shards). Both [n, K] int64."""
        turn = torch.arange(first, first + len(ids), device=ids.device)[:, None]
        if self._group is not None:
            turn = torch.full_like(turn, self._group)
        shard, place = self._table[ids, turn % self._counts[ids]].unbind(-1)
        return shard, place
