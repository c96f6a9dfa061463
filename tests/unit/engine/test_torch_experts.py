"""Engines whose torch model's experts are shared out: texts and acceptance are those of one engine, and when
a rank is gone, all end. On CPUs, by Gloo, and as on GPUs, which are played. (Bits of hidden states:
tests/unit/models/test_world_model.py. Who starts groups again: tests/e2e/test_groups.py.)"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.engine_runs import executor_of, go_on, request
from support.host_gpus import play
from support.played_groups import Found, not_measured, tokens, two_groups
from support.processes import runs

from nextn.distributed.gpus import NO_GPU, Gpu
from nextn.distributed.group import PeerGone
from nextn.distributed.memory import Memory
from nextn.distributed.torch_experts import TorchExpertWorld
from nextn.engine import build, gpu_ranks
from nextn.engine.engine import Engine
from nextn.engine.ep_rank import EPRank
from nextn.engine.gpu_ranks import share_gpus
from nextn.engine.kernels import runs_on_torch
from nextn.engine.model import make_model
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.server_config import ServerConfig

ONE = ServerConfig(
    threads=1, kernel_backend="reference", kv_cache_tokens=1024, check_integrity=True, grammar_backend="none",
    num_hidden_layers_override=3, max_running_requests=4, speculative_num_steps=2,
)  # fmt: skip
TREE: dict[str, Any] = {"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 4}
EPLB: dict[str, Any] = {
    "ep_size": 2, "ep_num_redundant_experts": 2, "enable_eplb": True, "eplb_rebalance_num_iterations": 4
}  # fmt: skip


def jobs(group: int) -> list[Request]:
    """Greedy with drafts, seeded without."""
    found = []
    for i, drafts in enumerate((2, 0)):
        params = SamplingParams(
            max_tokens=9,
            temperature=i,
            seed=i,
            ignore_eos=True,
            speculative=SpeculativeParams(num_steps=drafts),
        )
        found.append(Request(f"{group}.{i}", [5 + group, 6, 7, *range(9 * i)], params))
    return found


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        monkeypatch.setenv(name, "lo")  # so that what is set is gone afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(build, "time_steps", not_measured)


def found_by_one(config: ServerConfig, *groups: int) -> list[Found]:
    engine = Engine(config)
    found = [tokens(engine, jobs(group)) for group in groups]
    for each in found:
        assert max(len(some) for _, some in each) > 1, "no draft was accepted"
    return found


def test_one_group_on_played_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft tree; spare experts, which move. Then a rank is gone. (Two machines: test_gpu_ranks.py.)"""
    [want] = found_by_one(replace(ONE, **TREE), 0)
    play(monkeypatch.setattr)
    engine = Engine(replace(ONE, tp_size=2, **TREE, **EPLB))
    executor = executor_of(engine)
    try:
        assert isinstance(executor.world, TorchExpertWorld)
        assert tokens(engine, jobs(0)) == want
        assert executor._runner.together.balancer.moved > 0
        assert min(engine.stats().sent, engine.stats().waited) > 0
        [process] = executor.processes.values()
        engine.add(request("a", tokens=900))
        engine.step()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PeerGone, match="rank"):
            go_on(engine)
    finally:
        executor.close()
    assert not runs(process.pid)


def test_two_groups() -> None:
    """Both are busy, then one, then the other. At the end the other is gone."""
    config = replace(ONE, tp_size=2, dp_size=2, enable_dp_attention=True, ep_size=2, overlap_schedule="on")
    want = found_by_one(ONE, 0, 1)
    with two_groups(config) as (first, second):
        second.start(jobs(1))
        assert tokens(first, jobs(0)) == want[0]
        assert second.found(first) == want[1]
        assert tokens(first, jobs(1)) == want[1]
        second.start(jobs(0))
        assert second.found(first) == want[0]
        first.add(request("a", tokens=900))
        first.step()
        os.kill(second.pid, signal.SIGKILL)
        with pytest.raises(PeerGone, match="rank"):
            go_on(first)


@pytest.mark.parametrize(
    ("options", "is_torch"),
    [({}, True), ({"kernel_backend": "auto", "dtype": "float32"}, True), ({"model_path": "fake"}, False)],
)
def test_where_the_model_is_torch_s(options: dict[str, Any], is_torch: bool) -> None:
    assert runs_on_torch(replace(ONE, **options)) == is_torch


def test_halves_are_refused() -> None:
    config = replace(ONE, tp_size=2, ep_size=2, enable_two_batch_overlap=True)
    ranks: Any = SimpleNamespace(gpus=NO_GPU)
    with pytest.raises(ValueError, match="--enable-two-batch-overlap: only the native kernels do this"):
        make_model(config, torch.device("cpu"), 1, ranks)


def test_ranks_of_all_groups_have_the_gpus_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_ranks, "device_type", lambda name: "cuda")
    monkeypatch.setattr(gpu_ranks, "gpu_at", lambda place: Gpu(place, "H100", f"GPU {place}"))
    config = replace(ONE, tp_size=4, dp_size=2, enable_dp_attention=True).of_replica()
    memory = Memory()
    first, listener = share_gpus(config, EPRank(0, 0, memory, by_torch=True))
    second, none = share_gpus(config, EPRank(1, 0, memory, by_torch=True))
    assert listener is not None
    assert none is None
    ranks = [*(first or ()), *(second or ())]
    assert [rank.gpu.device for rank in ranks] == [0, 1, 2, 3]
    assert {(rank.backend, rank.port) for rank in ranks} == {("nccl", listener.getsockname()[1])}
    listener.close()
    memory.close()
