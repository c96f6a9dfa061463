"""Computes a better placement than the present one, for the load of the last steps.

counts [G, L, N]: rows of each attention group that chose each expert
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nextn.distributed.eplb import balanced
from nextn.distributed.placement import Counts, Loads, Placement, keep_slots, shard_loads

GAIN = 0.02  # part of the rows of its most loaded shard that a layer must save, otherwise its experts stay

# (present placement, counts, shards, dynamic, nodes, router's groups) -> the next one
Plan = Callable[[Placement, Counts, int, bool, int, int], Placement]


def improved(
    present: Placement, counts: Counts, shards: int, dynamic: bool, nodes: int = 1, groups: int = 1
) -> Placement:
    """A placement by EPLB. Layers in which it saves too little stay as they are. All ranks compute the
    same. nodes, groups: see `balanced`."""
    total = counts.sum(axis=0)
    planned = keep_slots(present, balanced(total, present.slots, shards, nodes, groups), shards)
    before = dispatched(counts, present, shards, dynamic).max(axis=1)
    after = dispatched(counts, planned, shards, dynamic).max(axis=1)
    better = after < before * (1 - GAIN)
    return Placement(np.where(better[:, None], planned.physical, present.physical), present.experts)


def dispatched(counts: Counts, placement: Placement, shards: int, dynamic: bool) -> Loads:
    """[L, E]: the rows of each shard. dynamic: an expert's rows are divided evenly among its replicas; else
    all rows of a group go to the same one, as in csrc/shared_experts.h."""
    if dynamic:
        return shard_loads(counts.sum(axis=0), placement, shards)
    rows = np.zeros(placement.physical.shape, np.int64)
    layers = np.arange(placement.layers)[:, None]
    for group, own in enumerate(counts):
        turn = (group % placement.replicas)[:, :, None]
        slots = np.take_along_axis(placement.logical, turn, axis=2)[:, :, 0]
        rows[layers, slots] += own
    found: Loads = rows.reshape(placement.layers, shards, -1).sum(axis=2).astype(np.float64)
    return found
