"""What is said where Ray is not there or cannot be used. (With Ray: tests/e2e/test_ray.py.)"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

from nextn.config import EngineConfig
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


def test_actors_run_what_is_there() -> None:
    assert importlib.util.find_spec(RANK_MODULE) is not None
    assert hasattr(importlib.import_module(RANK_MODULE), "join_and_run")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp_size": 1}, "Ray starts the ranks of --tp-size, which is 1"),
        ({"nnodes": 2}, "--nnodes is 2: Ray chooses the nodes; leave it out"),
        ({"dist_init_addr": "a:1"}, "--dist-init-addr is 'a:1': Ray's ranks find each other; leave it out"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EngineConfig(**{"tp_size": 2, "distributed_executor_backend": "ray", **options}).check()
