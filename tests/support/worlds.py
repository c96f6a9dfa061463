"""Native models with experts that the ranks of several groups share. Each rank is a thread of this
process."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from support.meshes import mesh

from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.memory import Memory
from nextn.distributed.mesh_world import MeshWorld
from nextn.distributed.placement import Placement
from nextn.distributed.ranks import Ranks
from nextn.distributed.shared import SharedRanks
from nextn.distributed.shared_world import SharedWorld
from nextn.engine.balance import Balancer
from nextn.models.native import NativeModel

Result = TypeVar("Result")
Balance = Callable[[ExpertWorld, NativeModel], Balancer]
MOST_ROWS = 300


class InLockstep:
    """A model whose passes all ranks run together. halves: some passes are in two halves. balancer: moves
    experts between passes."""

    def __init__(
        self,
        model: NativeModel,
        world: ExpertWorld,
        halves: bool = False,
        balancer: Balancer | None = None,
    ) -> None:
        self.model, self.world, self.balancer = model, world, balancer
        self._random = random.Random(world.group) if halves else None
        self.pool: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, batch: Any, pool: Any) -> Any:
        self.pool, first = pool, batch.rows
        if self._random is not None:
            first = self._random.choice([int(i) for i in batch.cu_rows])
        self.world.step(first, batch.rows - first, self._random is not None and self._random.random() < 0.7)
        return self._passed(batch)

    def idle(self) -> None:
        """Runs passes until no rank has rows any more."""
        while self.world.step(0):
            self._passed(self.model.batch([], self.pool.page_size))

    def _passed(self, batch: Any) -> Any:
        hidden = self.model.forward(batch, self.pool)
        if self.balancer is not None:
            self.balancer.stepped()
        return hidden


def in_world(
    make: Callable[..., NativeModel],
    work: Callable[[InLockstep, int], Result],
    placement: Placement,
    groups: int,
    each: int,
    shards: int,
    **options: Any,
) -> list[list[Result]]:
    """Runs work(model, group) on each rank of each group, and returns the results by group. options are for
    SharedWorld or MeshWorld, except these. halves: see InLockstep. balance: makes each rank's balancer.
    first_layer: of the placement. apart: as on several machines."""
    size, halves, apart = groups * each, options.pop("halves", False), options.pop("apart", False)
    first_layer = options.pop("first_layer", 0)
    balance: Balance | None = options.pop("balance", None)
    memory, of_groups = Memory(), [Memory() for _ in range(groups)]
    meshed = mesh(size, MOST_ROWS) if apart else []

    def run(rank: int) -> Result:
        most = 1 + placement.slots - placement.experts
        share = ExpertShare(rank, size, shards, placement, most, first_layer)
        world: ExpertWorld
        ranks: Ranks | None = None
        if apart:
            world = MeshWorld(share, meshed[rank], **{"groups": groups, **options})
            if each > 1:
                ranks = meshed[rank].part(range(rank // each * each, (rank // each + 1) * each))
        else:
            world = SharedWorld(share, groups, memory, size, MOST_ROWS, **options)
        if each > 1 and not apart:
            ranks = SharedRanks(rank % each, each, of_groups[rank // each], size, MOST_ROWS)
        with torch.inference_mode():
            try:
                own = make(threads=1 + rank % 2, ranks=ranks, world=world)
                model = InLockstep(own, world, halves, balance and balance(world, own))
                found = work(model, rank // each)
                model.idle()
            except BaseException as e:
                world.give_up(repr(e))
                if ranks is not None:
                    ranks.give_up(repr(e))
                raise
            return found

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(run, range(size)))
    for each_memory in (memory, *of_groups, *meshed):
        each_memory.close()
    return [found[g * each : (g + 1) * each] for g in range(groups)]
