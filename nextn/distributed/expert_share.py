"""Which routed experts a rank holds, if all ranks of several attention groups share them.

Expert parallelism: `shards` shards of whole experts; each shard's ranks have a slice of every expert in it. A
physical expert is an expert or a replica of one: those of shard s are s * own ... (s + 1) * own - 1, and the
placement says which expert each is. Replicas have the same bytes, so a placement changes no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nextn.distributed.placement import Placement

if TYPE_CHECKING:
    from nextn.ops.cpu.weights import PackedWeight


Bytes = NDArray[np.uint8]


def fill(places: Iterable[Bytes], data: Bytes) -> None:
    """Fills the places one after another. data: at least as long as all places together."""
    at = 0
    for place in places:
        place[:] = data[at : at + len(place)]
        at += len(place)


@dataclass
class ExpertShare:
    """rank, size: among all ranks. shards: it divides size. placement: of all layers with routed experts; the
    first of them is layer `first_layer`. most_replicas: maximum of an expert, in any later placement. nodes,
    groups: for plans, see `nextn.distributed.eplb.balanced`."""

    rank: int
    size: int
    shards: int
    placement: Placement
    most_replicas: int
    first_layer: int = 0
    nodes: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        physical = self.placement.physical.shape[1]
        if physical % self.shards:
            raise ValueError(
                f"--ep-size {self.shards}: {physical} experts, the redundant ones counted, cannot be divided "
                "by it; change --ep-size or --ep-num-redundant-experts"
            )

    @property
    def slices(self) -> int:
        """Number of ranks that share each expert."""
        return self.size // self.shards

    @property
    def slice(self) -> int:
        return self.rank % self.slices

    @property
    def shard(self) -> int:
        return self.rank // self.slices

    @property
    def own(self) -> range:
        """This rank's physical experts."""
        each = int(self.placement.physical.shape[1]) // self.shards
        return range(self.shard * each, (self.shard + 1) * each)

    def held(self, layer: int) -> np.ndarray:
        """The expert in each of this rank's slots."""
        return self.placement.physical[layer - self.first_layer, self.own.start : self.own.stop]


class ExpertTable:
    """The arrays that tell the kernels where one layer's experts are. They change only between steps.

    replicas [experts, most_replicas] int32: physical ones of each. count [experts] int32: how many. For the
    rest see `nextn.distributed.expert_mover.Slots`."""

    def __init__(self, share: ExpertShare, layer: int, gate_up: PackedWeight, down: PackedWeight) -> None:
        self.gate_up, self.down = gate_up, down
        experts = share.placement.logical.shape[1]
        self.replicas = np.zeros((experts, share.most_replicas), np.int32)
        self.count = np.zeros(experts, np.int32)
        self.take(share.placement, layer - share.first_layer)

    def size(self, member: int) -> int:
        return sum(map(len, self._parts(member)))

    def read(self, member: int, to: Bytes) -> None:
        at = 0
        for part in self._parts(member):
            to[at : at + len(part)] = part
            at += len(part)

    def write(self, member: int, found: Bytes) -> None:
        fill(self._parts(member), found)

    def _parts(self, member: int) -> list[Bytes]:
        return [*self.gate_up.member(member), *self.down.member(member)]

    def take(self, placement: Placement, row: int) -> None:
        logical = placement.logical[row]
        self.replicas[:, : logical.shape[1]] = logical
        self.count[:] = placement.replicas[row]
