"""Options of ranks and of the experts that they share: what is refused, and what each group of ranks gets."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.config import EngineConfig, usable_cores
from nextn.server_config import GroupConfig, ServerConfig

NODES: dict[str, Any] = {"nnodes": 2, "dist_init_addr": "a:5"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ep_size": 0}, "--ep-size is 0: it must be at least 1"),
        ({"ep_size": 2}, "--ep-size is 2: it must divide --tp-size, which is 1; change one of them"),
        ({"tp_size": 4, "ep_size": 3}, "--ep-size is 3: it must divide --tp-size, which is 4"),
        (
            {"tp_size": 4, "ep_size": 2, "distributed_executor_backend": "ray"},
            "--distributed-executor-backend is 'ray': --ep-size 2: Ray has not been tested",
        ),
        ({"tp_size": 2, "ep_num_redundant_experts": -1}, "--ep-num-redundant-experts is -1: it must be 0 or"),
        ({"ep_num_redundant_experts": 1}, "--ep-num-redundant-experts is 1: .*; raise --ep-size, or leave"),
        ({"init_expert_location": "a.pt"}, "--init-expert-location is 'a.pt': .*; raise --ep-size, or leave"),
        ({"enable_eplb": True}, "--enable-eplb is True: .*; raise --ep-size, or leave this out"),
        ({"eplb_rebalance_num_iterations": 0}, "--eplb-rebalance-num-iterations is 0: it must be at least 1"),
        ({"eplb_rebalance_layers_per_chunk": 0}, "--eplb-rebalance-layers-per-chunk is 0: it must be at"),
        ({"eplb_min_rebalancing_utilization_threshold": 1.1}, "threshold is 1.1: it must be between 0 and 1"),
        ({"ep_dispatch_algorithm": "fake"}, "--ep-dispatch-algorithm is 'fake': choose from static, dynamic"),
        ({"ep_dispatch_dtype": "nvfp4"}, "--ep-dispatch-dtype is 'nvfp4': choose from bf16, fp8"),
        ({"expert_distribution_recorder_mode": "x"}, "choose from stat, per_pass"),
    ],
    ids=str,
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**options).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tp_size": 4, "dp_size": 3},
            "--dp-size is 3: with --enable-dp-attention it must divide --tp-size, ",
        ),
        ({"tp_size": 4, "dp_size": 3, **NODES}, "it must divide --tp-size, which is 4, all groups'"),
        ({"tp_size": 6, "dp_size": 3, **NODES, "nnodes": 4}, "--tp-size 6 must be a multiple of it"),
        (
            {"tp_size": 4, "dp_size": 2, "distributed_executor_backend": "ray"},
            "--enable-dp-attention with --dp-size 2: Ray does not place groups of ranks",
        ),
    ],
    ids=str,
)
def test_refused_groups(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerConfig(enable_dp_attention=True, **options).check()


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (NODES, "and --nnodes 2: the ranks must be on this machine; leave out one of them"),
        (
            {"tp_size": 2, "distributed_executor_backend": "ray"},
            "with Ray: the ranks must be on this machine",
        ),
    ],
)
def test_refused_with_disaggregation(mode: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"--disaggregation-mode {mode} {message}"):
        ServerConfig(disaggregation_mode=mode, **{"tp_size": 2, **options}).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disaggregation_bootstrap_port": 65536}, "it must be between 0 and 65535"),
        ({"port": 8998}, "--disaggregation-bootstrap-port is 8998: it must differ from --port"),
        ({"disaggregation_timeout": 0.0}, "--disaggregation-timeout is 0.0: it must be between 0.1"),
        ({"disaggregation_transfer_backend": "mooncake"}, "choose from tcp, shm, nixl"),
    ],
)
def test_refused_disaggregation(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerConfig(disaggregation_mode="prefill", **options).check()


def test_allowed() -> None:
    others: dict[str, Any] = {"disaggregation_transfer_backend": "shm", "disaggregation_fallback": "off"}
    ServerConfig(port=8998, tp_size=2, **NODES, **others).check()  # they count in the other modes
    for mode in ("prefill", "decode"):
        ServerConfig(disaggregation_mode=mode, tp_size=4, dp_size=2, enable_dp_attention=True).check()
    ServerConfig(disaggregation_mode="prefill", port=0, disaggregation_bootstrap_port=0).check()
    EngineConfig("nextn-tiny", tp_size=4, ep_size=2, ep_num_redundant_experts=2, enable_eplb=True).check()
    EngineConfig(tp_size=4, **NODES).check()
    EngineConfig(tp_size=4, ep_size=2, enable_eplb=True, **NODES).check()
    ServerConfig(tp_size=4, dp_size=3, ep_size=2).check()  # replicas
    alone = ServerConfig(tp_size=2, enable_dp_attention=True)
    alone.check()
    assert (alone.attention_dp, alone.of_replica()) == (1, alone)


def test_ranks_of_groups_on_several_machines() -> None:
    """Two machines, of three groups of two ranks: the second group's are on both."""
    nodes: dict[str, Any] = {**NODES, "tp_size": 6, "dp_size": 3, "enable_dp_attention": True}
    for node, own in enumerate((range(3), range(3, 6))):
        whole = ServerConfig(**nodes, node_rank=node)
        whole.check()
        group = whole.of_replica()
        group.check()
        assert (group.own_ranks, whole.own_ranks, group.groups) == (own, own, 3)
        assert group.threads == max(1, usable_cores() // 3)


@given(st.integers(2, 8), st.integers(1, 8), st.integers(1, 64))
def test_what_a_group_gets(groups: int, ranks: int, shards: int) -> None:
    world = groups * ranks
    whole = ServerConfig(
        port=5, tp_size=world, dp_size=groups, enable_dp_attention=True, ep_size=shards, threads=3
    )
    if world % shards:
        with pytest.raises(ValueError, match="--ep-size is"):
            whole.check()
        return
    whole.check()
    group = pickle.loads(pickle.dumps(whole.of_replica()))
    group.check()
    assert type(group) is GroupConfig
    assert (group.tp_size, group.ep_size, group.attention_dp) == (ranks, shards, groups)
    assert (group.world_size, whole.world_size, group.threads, group.port) == (world, world, 3, 5)


def test_each_rank_has_its_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.server_config.usable_cores", lambda: 8)
    for groups in (2, 4):
        assert ServerConfig(tp_size=4, dp_size=groups, enable_dp_attention=True).of_replica().threads == 2
