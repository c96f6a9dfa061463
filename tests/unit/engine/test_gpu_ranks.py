"""An engine whose ranks meet as on GPUs, by torch.distributed, with their arrays in the host's memory: on two
machines."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engine_runs import executor_of, go_on, request
from support.host_gpus import KIND, HostGpu, play
from support.nodes import free_address, ranks_of_other_nodes
from support.processes import children

from nextn.config import EngineConfig
from nextn.distributed.group import PeerGone
from nextn.distributed.torch_group import TorchGroup
from nextn.engine import gpu_ranks, tensor_parallel
from nextn.engine.engine import Engine
from nextn.engine.model import make_model
from nextn.engine.node import run_node
from nextn.engine.tensor_parallel import TensorParallelExecutor
from nextn.request import Request, SamplingParams
from nextn.server_config import ServerConfig

CHOICES = [
    SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True),
]


ONE = EngineConfig(
    threads=1, kernel_backend="reference", kv_cache_tokens=1024, speculative_num_steps=2,
    check_integrity=True, step_cost_cache="off", num_hidden_layers_override=3,
)  # fmt: skip
TWO = replace(ONE, tp_size=2)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch.setattr)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        monkeypatch.setenv(name, "lo")  # so that what is set is gone afterwards
        monkeypatch.delenv(name)


@contextlib.contextmanager
def made(config: EngineConfig) -> Iterator[Engine]:
    engine = Engine(config)
    try:
        yield engine
    finally:
        if config.tp_size > 1:
            executor_of(engine).close()


def tokens(engine: Engine) -> list[tuple[str, tuple[int, ...]]]:
    """As they come: how many in a step tells how many drafts were accepted."""
    for number, params in enumerate(CHOICES):
        engine.add(Request(str(number), [5, 6, 7], params))
    found = []
    while engine.has_work():
        found += [(out.rid, tuple(out.tokens)) for out in engine.step()]
    return found


def kill(engine: Engine, pid: int) -> None:
    engine.add(request("a", tokens=900))
    engine.step()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PeerGone, match="rank"):
        go_on(engine)


@pytest.fixture(scope="module")
def want() -> list[tuple[str, tuple[int, ...]]]:
    with made(ONE) as engine:
        found = tokens(engine)
    assert max(len(each) for _, each in found) > 1, "no draft was accepted"
    return found


def on_two_nodes() -> EngineConfig:
    return replace(TWO, nnodes=2, dist_init_addr=free_address("127.0.0.2"), dist_timeout=60.0)


@pytest.mark.usefixtures("by_torch")
def test_ranks_of_two_machines_find_the_text_of_one(want: list[tuple[str, tuple[int, ...]]]) -> None:
    """Even when one was gone, and all have begun again: a group that was left can be joined anew. (On one
    machine: test_torch_experts.py.)"""
    before, config = children(os.getpid()), on_two_nodes()
    with ranks_of_other_nodes(config):
        with made(config) as engine:
            [pid] = children(os.getpid()) - before
            kill(engine, pid)
        with made(config) as engine:
            assert isinstance(executor_of(engine)._runner.model.group, TorchGroup)
            assert tokens(engine) == want
    assert children(os.getpid()) <= before


@pytest.mark.usefixtures("by_torch")
def test_machines_with_other_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says it, and none waits for the others."""
    monkeypatch.setenv(KIND, "A100")
    monkeypatch.setattr(gpu_ranks, "gpu_at", lambda place: HostGpu(place, "H100", "the host"))
    config, codes = on_two_nodes(), list[int]()
    other = threading.Thread(target=lambda: codes.append(run_node(replace(config, node_rank=1))))
    other.start()
    with pytest.raises(
        ValueError, match=r"node 0 \(.*\): H100; node 1 \(.*\): A100; choose GPUs of one kind"
    ):
        Engine(config)
    other.join(60)
    assert codes == [1]


class BrokenGpu(HostGpu):
    def take(self) -> None:
        if self.device == 1:
            raise ValueError("GPU 1 has no memory left")


@pytest.mark.usefixtures("by_torch")
def test_what_a_rank_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And rank 0 does not wait for it."""
    monkeypatch.setattr(gpu_ranks, "gpu_at", lambda place: BrokenGpu(place, "H100", "the host"))
    with pytest.raises(ValueError, match="GPU 1 has no memory left"):
        Engine(TWO)


def test_groups_on_gpus_of_several_machines_are_refused() -> None:
    """Their ranks have not met as on GPUs."""
    options = {"dp_size": 2, "enable_dp_attention": True, "nnodes": 2, "dist_init_addr": "10.0.0.1:5000"}
    config: Any = ServerConfig(**{**asdict(TWO), **options})
    ranks: Any = SimpleNamespace(gpus=None)
    said = "--enable-dp-attention with --nnodes 2: only the native kernels do this so far, and --device cuda"
    with pytest.raises(ValueError, match=said):
        make_model(config.of_replica(), torch.device("cuda"), 1, ranks)


@pytest.mark.parametrize("busy", [True, False])
def test_a_process_that_waits_for_nccl_ends(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    def ended(code: int) -> None:
        codes.append(code)
        stuck._busy = None

    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(tensor_parallel, "STUCK_SECONDS", 0.0)
    another = threading.get_ident() + 1
    stuck = SimpleNamespace(_busy=another if busy else threading.get_ident())
    TensorParallelExecutor._end_if_stuck(stuck)  # type: ignore[arg-type]
    assert codes == [1] * busy
