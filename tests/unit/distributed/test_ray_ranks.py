"""What is said where Ray is not there or cannot be used. (With Ray: tests/e2e/test_ray.py.)"""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from nextn.config import EngineConfig
from nextn.distributed import ray_ranks
from nextn.distributed.gpus import Gpu
from nextn.distributed.ray_ranks import RANK_MODULE, RayRanks
from nextn.engine.engine import Engine

BY_RAY = EngineConfig(tp_size=2, threads=1, distributed_executor_backend="ray")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"needs the extra: pip install 'nextn\[ray\]'"):
        Engine(BY_RAY)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://head:10001", "RAY_ADDRESS is ray://head:10001, an address for Ray's clients"),
        ("127.0.0.1:1", "no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1: .*; start one with ray start"),
    ],
)
def test_addresses_that_cannot_be(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class NotConnected:
        is_initialized = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "ray", NotConnected())
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=said):
        RayRanks()


class Cluster:
    """Ray as far as `RayRanks` knows it. Remembers which resources were asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: "10.0.0.1",
            placement_group=self.placed,
            placement_group_table=lambda group: {"bundles_to_node_id": {0: "a", 1: "b"}},
        )

    def placed(self, bundles: list[Any], **options: Any) -> Any:
        self.asked += bundles
        return SimpleNamespace(wait=lambda seconds: True)

    def remote(self, **options: Any) -> Any:
        place = options["scheduling_strategy"].placement_group_bundle_index
        self.asked.append((place, options["num_cpus"], options.get("num_gpus")))
        run = SimpleNamespace(remote=lambda config, rank: SimpleNamespace(future=Future[int]))
        actor = SimpleNamespace(remote=lambda: SimpleNamespace(run=run))
        return lambda what: SimpleNamespace(remote=what) if what is ray_ranks._seen_gpu else actor

    def get(self, found: Any, timeout: float) -> Any:
        return found

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "a")

    def nodes(self) -> list[Any]:
        return [{"NodeID": node, "NodeManagerAddress": node} for node in "ab"]


@pytest.mark.parametrize("gpus", [False, True])
def test_on_gpus_each_rank_has_one(gpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's is that which its bundle sees."""
    strategies = SimpleNamespace(
        PlacementGroupSchedulingStrategy=lambda group, placement_group_bundle_index: SimpleNamespace(
            placement_group_bundle_index=placement_group_bundle_index
        )
    )
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setitem(sys.modules, "ray.util", cluster.util)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    monkeypatch.setattr(ray_ranks, "gpu_at", lambda place: Gpu(place, "H100", "GPU-a"))
    found = RayRanks().start({1: BY_RAY}, gpus)
    if gpus:
        assert found == "GPU-a"
        assert cluster.asked == [{"CPU": 1, "GPU": 1}] * 2 + [(1, 1, 1), (0, 0, 1)]
    else:
        assert found is None
        assert cluster.asked == [{"CPU": 1}] * 2 + [(1, 1, None)]


def test_actors_run_what_is_there() -> None:
    assert importlib.util.find_spec(RANK_MODULE) is not None
    assert hasattr(importlib.import_module(RANK_MODULE), "join_and_run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp_size": 1}, "Ray starts the ranks of --tp-size, which is 1"),
        ({"nnodes": 2}, "--nnodes is 2: Ray chooses the nodes; leave it out"),
        ({"dist_init_addr": "a:1"}, "--dist-init-addr is 'a:1': Ray connects the ranks; leave it out"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EngineConfig(**{"tp_size": 2, "distributed_executor_backend": "ray", **options}).check()
