"""Placements of a server on several machines: the groups of experts from which the router chooses stay on one
machine each, at the start and when experts move."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nextn.config import EngineConfig
from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.placement import Placement
from nextn.engine import world as of_engine
from nextn.engine.balance import Balancer

LAYERS, EXPERTS, GROUPS, SPARE = 3, 16, 4, 4
MODEL: Any = SimpleNamespace(
    num_hidden_layers=1 + LAYERS, n_routed_experts=EXPERTS, n_group=GROUPS, architecture="A",
    is_moe=lambda layer: layer > 0,
)  # fmt: skip


def counts(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.5, (LAYERS, EXPERTS)).clip(max=999)


def share(path: Path, ep_size: int, nodes: int) -> ExpertShare:
    path.write_text(json.dumps({"logical_count": counts(1).tolist()}))
    config = EngineConfig(
        tp_size=8, ep_size=ep_size, nnodes=nodes, dist_init_addr="a:1", ep_num_redundant_experts=SPARE,
        init_expert_location=str(path),
    )  # fmt: skip
    return of_engine._share(config, MODEL, 0)


def nodes_with(placement: Placement, nodes: int) -> list[list[set[int]]]:
    """For each layer, for each of the router's groups, the nodes that have an expert of it."""
    by_node = placement.physical.reshape(LAYERS, nodes, -1) // (EXPERTS // GROUPS)
    return [
        [{node for node in range(nodes) if group in layer[node]} for group in range(GROUPS)]
        for layer in by_node
    ]


@pytest.mark.parametrize(
    ("ep_size", "nodes", "together"),
    [(4, 2, True), (4, 1, False), (2, 4, False)],  # two nodes share each shard
)
def test_a_plan_from_counts(tmp_path: Path, ep_size: int, nodes: int, together: bool) -> None:
    placed = nodes_with(share(tmp_path / "counts.json", ep_size, nodes).placement, 2)
    assert all(len(of_group) == 1 for layer in placed for of_group in layer) == together


class Alone:
    """A world of one rank, with the counts of all."""

    groups, group, dynamic = 1, 0, True

    def __init__(self, own: ExpertShare) -> None:
        self.share = own
        self.share.size = 1

    def area(self, size: int) -> np.ndarray:
        return np.zeros(size, np.uint8)

    def gathered(self, board: np.ndarray) -> None:
        pass

    def meet(self) -> None:
        pass


def test_a_plan_while_serving(tmp_path: Path) -> None:
    own = share(tmp_path / "counts.json", 4, 2)
    found: list[np.ndarray] = []
    model: Any = SimpleNamespace(parallel=[], expert_counts=lambda: [sum(found, np.zeros_like(counts(2)))])
    config = EngineConfig(eplb_rebalance_num_iterations=1)
    world: Any = Alone(own)
    balancer = Balancer(config, world, model)
    moved: list[int] = []
    balancer._mover = SimpleNamespace(move=lambda table, some: moved.append(len(some)))  # type: ignore[assignment]
    balancer._tables = [SimpleNamespace(take=lambda placement, row: None)] * LAYERS  # type: ignore[list-item]
    before = own.placement
    found.append(counts(2))
    balancer.stepped()
    assert sum(moved) > 0
    assert own.placement != before
    assert all(len(of_group) == 1 for layer in nodes_with(own.placement, 2) for of_group in layer)
