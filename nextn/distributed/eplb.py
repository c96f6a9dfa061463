"""Plans placements that balance the load of shards.

The algorithm is DeepSeek's Expert Parallelism Load Balancer (EPLB, https://github.com/deepseek-ai/EPLB;
section 3.4 of arXiv 2412.19437). For the letters see `nextn.distributed.placement`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.distributed.placement import (
    Counts,
    Ints,
    Loads,
    Placement,
    check_sizes,
    checked_counts,
    shard_loads,
)


def balanced(counts: NDArray[Any], physical: int, shards: int, nodes: int = 1, groups: int = 1) -> Placement:
    """Plans a placement from counts [L, N], the number of rows of each expert. `physical` is P.

    The hierarchical policy, if `groups` (the router's) is a multiple of `nodes`: groups go to nodes, experts
    are replicated within their node, and replicas go to the node's shards. So a token that is routed to few
    groups goes to few nodes. Otherwise the global policy, which is the same with one node and one group.

    - Groups and replicas are packed in order of falling load, each into the pack with the lowest load that
      has room.
    - A spare slot goes to the expert with the highest load per replica. Among equal ones, to the one with the
      fewest replicas, so that a layer without load gets different experts.
    - Two rules are added to EPLB. A shard gets a second replica of an expert only if P leaves no choice.
      A layer keeps the trivial placement if the plan is not better (and the groups allow it).

    Deterministic: among equal choices the lowest number is taken, so all ranks plan the same from the same
    counts. Raises ValueError for sizes that do not divide.
    """
    table = checked_counts(counts)
    layers, experts = table.shape
    check_sizes(experts, physical, shards)
    if nodes < 1 or groups < 1 or groups % nodes:
        nodes = groups = 1
    if shards % nodes or experts % groups:
        raise ValueError(
            f"{shards} shards must be a multiple of {nodes} nodes, and {experts} experts of {groups} groups"
        )
    trivial = Placement.trivial(layers, experts, physical - experts)
    found = np.stack([_layer(row, physical, shards, nodes, groups) for row in table])
    if nodes == 1 or physical == experts:  # trivial then has a node's groups in this node
        most = shard_loads(table, Placement(found, experts), shards).max(axis=1)
        keep = shard_loads(table, trivial, shards).max(axis=1) <= most
        found[keep] = trivial.physical[keep]
    return Placement(found, experts)


def _layer(loads: Counts, physical: int, shards: int, nodes: int, groups: int) -> Ints:
    """The expert in each slot of one layer; ascending within a shard."""
    of_group = loads.reshape(groups, -1)
    node_of_group = _pack(of_group.sum(axis=1).astype(np.float64), np.arange(groups), nodes)
    node_of = np.repeat(node_of_group, of_group.shape[1])
    found = []
    for node in range(nodes):
        own = np.flatnonzero(node_of == node)
        replicas = _replicate(loads[own], physical // nodes, shards // nodes)
        items = np.repeat(np.arange(len(own)), replicas)
        shares = loads[own][items] / replicas[items]
        shard_of = _pack(shares, items, shards // nodes)
        found.append(own[items[np.argsort(shard_of, kind="stable")]])
    return np.concatenate(found).astype(np.int32)


def _replicate(loads: Counts, slots: int, shards: int) -> Counts:
    """Number of slots of each expert: at most one per shard, as long as other experts can take the rest."""
    replicas = np.ones(len(loads), np.int64)
    most = max(shards, -(-slots // len(loads)))
    for _ in range(slots - len(loads)):
        shares = np.where(replicas < most, loads / replicas, -1.0)
        highest = np.flatnonzero(shares == shares.max())
        replicas[highest[replicas[highest].argmin()]] += 1
    return replicas


def _pack(loads: Loads, experts: NDArray[np.int64], packs: int) -> NDArray[np.int64]:
    """The pack of each item. All packs have the same number of items. A greedy method balances the loads.

    experts[i]: items with the same number go to different packs, if no number occurs more often than packs.
    """
    found = np.full(len(loads), -1, np.int64)
    room = np.full(packs, len(loads) // packs)
    filled = np.zeros(packs)
    holds = np.zeros((packs, int(experts.max()) + 1), np.int64)

    def put(item: int, pack: int, sign: int = 1) -> None:
        found[item] = pack if sign > 0 else -1
        room[pack] -= sign
        filled[pack] += sign * loads[item]
        holds[pack, experts[item]] += sign

    for item in np.argsort(-loads, kind="stable").tolist():
        others = holds[:, experts[item]] == 0
        apart = others & (room > 0)
        pack = int(np.where(apart if apart.any() else room > 0, filled, np.inf).argmin())
        if not apart.any():
            # The packs with room have this expert, and those without it are full. One of the full packs gives
            # its lightest item that `pack` does not hold to `pack`.
            there = (found >= 0) & others[found] & (holds[pack, experts] == 0)
            if there.any():
                passed = int(np.where(there, loads, np.inf).argmin())
                full = int(found[passed])
                put(passed, full, -1)
                put(passed, pack)
                pack = full
        put(item, pack)
    return found
