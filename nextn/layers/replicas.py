"""Which shard computes a row's expert, where a world shares the experts out and some have replicas.

    N  logical experts: those of the model      P  physical experts: logical ones and spare replicas
    E  shards, of which shard s has physical experts s * P / E .. (s + 1) * P / E - 1

A shard has equal physical experts only once in memory: they are one expert that is `held`. N = 4, P = 6 and
E = 2, with the physical experts 0 1 0 | 2 3 0: shard 0 holds [0, 1], shard 1 holds [0, 2, 3]. Rows of expert
0 go to the replicas in turns: two of three to shard 0. All replicas have the same weights, so a text does not
depend on any of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.distributed.world import World


@dataclass(frozen=True)
class ExpertParallel:
    """How the target's routed experts are shared out.

    phy2log: of each layer that has routed experts, the logical expert of each physical one, [layers, P]; by
    default each is there once, in their order. static: which replica a row goes to depends on its group, not
    on its number in the batch.
    """

    world: World
    phy2log: NDArray[Any] | None = None
    static: bool = False

    def replicas(self, layer: int, layers: int, experts: int, device: torch.device) -> Replicas:
        """layer: of the `layers` that have routed experts. Raises ValueError for what cannot be a placement
        of so many experts, or not on so many shards."""
        world, found = self.world, self.phy2log
        if found is None:
            found = np.tile(np.arange(experts), (layers, 1))
        if found.ndim != 2 or len(found) != layers:
            raise ValueError(f"a placement of shape {list(found.shape)}: the model has {layers} MoE layers")
        return Replicas(found[layer], experts, world.shards, world.group if self.static else None, device)


class Replicas:
    """One layer's. held: of each shard, its logical experts."""

    def __init__(
        self, physical: NDArray[Any], experts: int, shards: int, group: int | None, device: torch.device
    ) -> None:
        if len(physical) % shards:
            raise ValueError(
                f"{len(physical)} physical experts cannot be divided evenly among --ep-size {shards} shards"
            )
        if set(physical.tolist()) != set(range(experts)):
            raise ValueError(f"a placement must have each of the experts 0..{experts - 1}, and no others")
        width = len(physical) // shards
        parts = physical.reshape(shards, width)
        self.held: list[list[int]] = [np.unique(part).tolist() for part in parts]
        self._group = group
        slots: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
        for p, e in enumerate(physical.tolist()):
            slots[e].append((p // width, self.held[p // width].index(e)))
        most = max(map(len, slots))
        table = [found + found[:1] * (most - len(found)) for found in slots]
        self._table = torch.tensor(table, device=device)  # [N, most, 2]
        self._counts = torch.tensor([len(found) for found in slots], device=device)

    def choose(self, ids: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """ids [n, K], logical experts of rows `first` and on -> the shards that compute them, and their
        places in what those hold. Both [n, K] int64."""
        turn = torch.arange(first, first + len(ids), device=ids.device)[:, None]
        if self._group is not None:
            turn = torch.full_like(turn, self._group)
        shard, place = self._table[ids, turn % self._counts[ids]].unbind(-1)
        return shard, place
