"""A MoE layer whose experts a world shares, beside one that has all of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import tiny_config
from support.sharing import ExactReference, same
from support.thread_world import ThreadWorld, run_world
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nextn.distributed.group import Alone
from nextn.distributed.placement import Placement
from nextn.families.config import ModelConfig
from nextn.layers.expert_parallel import ParallelMoE
from nextn.layers.mlp import MoE
from nextn.layers.replicas import ExpertParallel
from nextn.layers.sharing import Sharing
from nextn.ops.base import Addend, Mixture

CPU = torch.device("cpu")


@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_the_sums_of_one_device(data: st.DataObject) -> None:
    """Any numbers of rows, ranks, shards and replicas, any routing, rows of experts in fp8 or not."""
    draw = data.draw
    groups, ranks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shards = draw(st.sampled_from([n for n in range(1, groups * ranks + 1) if groups * ranks % n == 0]))
    experts = draw(st.sampled_from([4, 8, 12]))
    config = tiny_config(
        hidden_size=draw(st.one_of(st.integers(12, 40), st.just(130))),
        moe_intermediate_size=draw(st.integers(12, 40)),
        n_routed_experts=experts, n_shared_experts=draw(st.integers(0, 1)),
        num_experts_per_tok=draw(st.integers(1, 4)), n_group=1, topk_group=1,
    )  # fmt: skip
    cfg, dtype = ModelConfig.from_dict(config), draw(st.sampled_from([torch.float32, torch.bfloat16]))
    spare = -experts % shards + shards * draw(st.integers(0, 2))
    gen = np.random.default_rng(draw(st.integers(0, 999)))
    slots = np.concatenate([np.arange(experts), gen.integers(0, experts, spare)])
    placement = Placement(gen.permuted(np.stack([slots] * 2), axis=1), experts)
    static, fp8_rows = draw(st.booleans()), draw(st.booleans())
    rows = draw(st.lists(st.integers(0, 11), min_size=groups, max_size=groups))

    whole = MoE(Sharing(cfg, ExactReference(), dtype, CPU, Alone(), fp8_rows=fp8_rows))
    torch_gen = torch.Generator().manual_seed(int(gen.integers(999)))
    weights = whole.targets("")
    for weight in weights.values():
        weight.normal_(0, 0.3, generator=torch_gen)
    inputs = [torch.randn(-(-n // 8) * 8, cfg.hidden_size, generator=torch_gen).to(dtype) for n in rows]
    want = [made(whole.forward(x, batch_of(n))) if n else () for x, n in zip(inputs, rows, strict=True)]

    def compute(world: ThreadWorld) -> tuple[Tensor, ...]:
        sharing = Sharing(cfg, ExactReference(), dtype, CPU, world.attention, fp8_rows=fp8_rows)
        moe = ParallelMoE(sharing.with_shared_experts(ExpertParallel(world, placement, static)), 2)
        fill(moe, weights)
        if rows[world.group]:
            return moe.forward(inputs[world.group], batch_of(rows[world.group]))
        moe.idle()
        return ()

    for rank, found in enumerate(run_world(groups * ranks, groups, shards, compute)):
        same(found, want[rank // ranks])


@pytest.mark.parametrize("fp8_rows", [False, True])
def test_bytes_of_rows(fp8_rows: bool) -> None:
    """A row goes once to each shard that has an expert of it, in bf16 or in about half the bytes, beside its
    choices."""
    cfg = ModelConfig.from_dict(
        tiny_config(hidden_size=260, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)
    )

    def compute(world: Recorded) -> tuple[int, Tensor]:
        sharing = Sharing(cfg, ExactReference(), torch.bfloat16, CPU, world.attention, fp8_rows=fp8_rows)
        moe = ParallelMoE(sharing.with_shared_experts(ExpertParallel(world)), 2)
        for weight in moe.targets("").values():
            weight.fill_(0.01)
        x = torch.randn(16, 260, generator=torch.Generator().manual_seed(world.rank)).bfloat16()
        moe.router.normal_(generator=torch.Generator().manual_seed(9))
        moe.forward(x, batch_of(15))
        return world.to[1][1 - world.rank], moe.route(x)[0][:15]  # the sizes go first

    for rank, (sent, ids) in enumerate(run_world(2, 2, 2, lambda world: compute(Recorded(world)))):
        there = int((ids // 2 == 1 - rank).any(1).sum())
        assert 0 < there < 15
        assert sent == there * (2 * 4 + (260 + 3 * 4 if fp8_rows else 2 * 260))


def test_the_host_waits_for_sizes_alone() -> None:
    """No other number of the device decides about a shape, so there is nothing that it would wait for."""
    config = tiny_config(n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)
    cfg = ModelConfig.from_dict(config)

    def compute(world: ThreadWorld) -> list[str]:
        sharing = Sharing(cfg, ExactReference(), torch.float32, CPU, world.attention)
        moe = ParallelMoE(sharing.with_shared_experts(ExpertParallel(world)), 2)
        for weight in moe.targets("").values():
            weight.normal_()
        with HostWaits() as waits:
            moe.forward(torch.randn(8, cfg.hidden_size), batch_of(5))
        return waits.found

    assert run_world(2, 2, 2, compute) == [[], []]


class HostWaits(TorchDispatchMode):
    """found: what was called that makes the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)
        by_places = func is torch.ops.aten.index.Tensor and all(at.dtype is not torch.bool for at in args[1])
        if waits and not by_places:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


class Recorded:
    """to: of each exchange, the bytes that went to each rank."""

    def __init__(self, world: ThreadWorld) -> None:
        self._world = world
        self.to: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def exchange(self, parts: Sequence[Tensor], due: Sequence[int]) -> list[Tensor]:
        self.to.append([part.nbytes for part in parts])
        return self._world.exchange(parts, due)


def made(found: Sequence[Addend]) -> tuple[Tensor, ...]:
    """Mixtures too."""
    return tuple(ExactReference().combine(*one) if isinstance(one, Mixture) else one for one in found)


def batch_of(rows: int) -> Any:
    return SimpleNamespace(rows=rows)


def fill(moe: ParallelMoE, weights: dict[str, Tensor]) -> None:
    shared = {} if moe.shared is None else moe.shared.targets("")
    inner, hidden = (None, None) if moe.shared is None else (moe.shared.inner.own, moe.shared.hidden.own)
    prefix = moe.cfg.names.at(2)
    rows = {name.removeprefix(prefix): own for name, own in moe.rows().items()}
    for name, target in moe.targets("").items():
        own = rows.get(name)
        if name in shared:
            own = hidden if name.endswith(moe.cfg.names.down) else inner
        target.copy_(weights[name] if own is None else weights[name][own.start : own.stop])
