"""Placements: which shard computes which expert. `nextn.distributed.eplb` plans them.

Replicas of an expert have equal weights, so a placement never changes a text.

    L  layers with routed experts     N  logical experts: those of the model
    E  shards                         P  physical experts: logical ones and spare replicas; a multiple of E

Shard s holds physical experts s * P / E .. (s + 1) * P / E - 1; their numbers are slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Counts = NDArray[np.int64]
Loads = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Placement:
    """physical [L, P]: the logical expert in each slot (phy2log). `experts` is N. Arrays are read-only.

    >>> placement = Placement(np.array([[0, 1, 2, 0]]), experts=3)  # two shards: 0, 1 and 2, 0
    >>> placement.logical.tolist(), placement.replicas.tolist()
    ([[[0, 3], [1, -1], [2, -1]]], [[2, 1, 1]])

    Raises ValueError for an expert without a slot, and for a number that is not an expert's.
    """

    physical: NDArray[Any]  # int32
    experts: int

    def __post_init__(self) -> None:
        physical = np.array(self.physical)
        if physical.ndim != 2 or 0 in physical.shape or physical.dtype.kind not in "iu":
            raise ValueError("a placement is a table of whole numbers, a row for each layer")
        outside = np.argwhere((physical < 0) | (physical >= self.experts))
        if len(outside):
            layer, slot = outside[0].tolist()
            raise ValueError(
                f"layer {layer} has expert {physical[layer, slot]} in slot {slot}; the model's experts are "
                f"0..{self.experts - 1}"
            )
        physical = physical.astype(np.int32)
        physical.setflags(write=False)
        object.__setattr__(self, "physical", physical)
        missing = np.argwhere(self.replicas == 0)
        if len(missing):
            layer, expert = missing[0].tolist()
            raise ValueError(f"layer {layer} has no slot for expert {expert}")

    @classmethod
    def trivial(cls, layers: int, experts: int, spare: int = 0) -> Placement:
        """Slot p holds expert p % experts, as in SGLang's `trivial`."""
        return cls(np.tile(np.arange(experts + spare) % experts, (layers, 1)), experts)

    @cached_property
    def replicas(self) -> Ints:
        """[L, N]: number of slots that hold each expert (logcnt)."""
        found = np.zeros((self.layers, self.experts), np.int32)
        np.add.at(found, (np.arange(self.layers)[:, None], self.physical), 1)
        found.setflags(write=False)
        return found

    @cached_property
    def logical(self) -> Ints:
        """[L, N, most replicas of any expert]: the slots of each expert, ascending, then -1 (log2phy)."""
        found = np.full((self.layers, self.experts, int(self.replicas.max())), -1, np.int32)
        by_expert = np.argsort(self.physical, axis=1, kind="stable")
        found[np.arange(found.shape[2]) < self.replicas[:, :, None]] = by_expert.ravel()
        found.setflags(write=False)
        return found

    @property
    def layers(self) -> int:
        return int(self.physical.shape[0])

    @property
    def slots(self) -> int:
        """P."""
        return int(self.physical.shape[1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return self.experts == other.experts and np.array_equal(self.physical, other.physical)

    def __hash__(self) -> int:
        return hash((self.experts, self.physical.shape, self.physical.tobytes()))


def shard_loads(counts: NDArray[Any], placement: Placement, shards: int) -> Loads:
    """[L, E]: rows of each shard, if the rows of an expert are divided evenly among its replicas."""
    table = checked_counts(counts)
    if table.shape != placement.replicas.shape:
        raise ValueError(f"counts of shape {table.shape}, a placement of {placement.replicas.shape}")
    check_sizes(placement.experts, placement.slots, shards)
    each = np.take_along_axis(table / placement.replicas, placement.physical, axis=1)
    # cumsum adds in the order of slots on every CPU; sum need not, and ranks have to agree on a plan.
    loads: Loads = each.reshape(placement.layers, shards, -1).cumsum(axis=2)[:, :, -1]
    return loads


def utilisation(loads: Loads) -> Loads:
    """loads [L, E] -> [L]: mean load divided by the highest, at most 1; 1 for a layer without load."""
    most = loads.max(axis=1)
    found: Loads = np.divide(loads.mean(axis=1), most, out=np.ones(len(loads)), where=most > 0)
    return np.minimum(found, 1.0)


class Move(NamedTuple):
    """`slot` gets the weights that are in slot `source` of the old placement."""

    slot: int
    source: int


def moves(old: Placement, new: Placement, shards: int) -> list[list[Move]]:
    """For each layer, the slots whose expert changes, in ascending order, and a slot that has the new
    weights: on the same shard if possible, otherwise the lowest one.

    A source may be a slot that changes itself: read all sources of a layer before writing.
    """
    if old.experts != new.experts or old.physical.shape != new.physical.shape:
        raise ValueError("the two placements are of different sizes")
    check_sizes(new.experts, new.slots, shards)
    width = new.slots // shards
    found: list[list[Move]] = []
    for layer in range(new.layers):
        changed = np.flatnonzero(old.physical[layer] != new.physical[layer]).tolist()
        found.append([])
        for slot in changed:
            expert = new.physical[layer, slot]
            sources = old.logical[layer, expert, : old.replicas[layer, expert]]
            near = sources[sources // width == slot // width]
            found[-1].append(Move(slot, int(near[0] if len(near) else sources[0])))
    return found


def keep_slots(old: Placement, new: Placement, shards: int) -> Placement:
    """`new` with the slots inside each shard reordered: experts that were on the shard in `old` keep their
    slots. This saves moves and does not change the load."""
    check_sizes(new.experts, new.slots, shards)
    if old.physical.shape != new.physical.shape:
        raise ValueError("the two placements are of different sizes")
    before = old.physical.reshape(-1, new.slots // shards)
    found = new.physical.reshape(before.shape).copy()
    for was, row in zip(before.tolist(), found, strict=True):
        left = row.tolist()
        kept = []
        for expert in was:
            kept.append(expert in left)
            if kept[-1]:
                left.remove(expert)
        rest = iter(left)
        row[:] = [expert if stays else next(rest) for expert, stays in zip(was, kept, strict=True)]
    return Placement(found.reshape(new.physical.shape), new.experts)


def checked_counts(counts: NDArray[Any]) -> Counts:
    """Raises ValueError for counts that are not a table of integers of at least 0."""
    table = np.asarray(counts)
    if table.ndim != 2 or 0 in table.shape or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError("counts are a table of whole numbers from 0, a row for each layer")
    return table.astype(np.int64)


def check_sizes(experts: int, physical: int, shards: int) -> None:
    """Raises ValueError if shards cannot have the same number of physical experts, or experts are left
    out."""
    if shards < 1:
        raise ValueError(f"{shards} shards: at least 1 is needed")
    if physical < experts:
        raise ValueError(f"{physical} physical experts are too few for the model's {experts}")
    if physical % shards:
        raise ValueError(
            f"{physical} physical experts ({experts} and {physical - experts} spare) cannot be divided "
            f"evenly among {shards} shards; with {-physical % shards} more spare ones they can"
        )
