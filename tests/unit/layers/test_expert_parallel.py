"""A MoE layer whose experts a world shares, beside one that has all of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import tiny_config
from support.sharing import ExactReference, same
from torch import Tensor

from nextn.distributed.group import Alone
from nextn.distributed.placement import Placement
from nextn.distributed.thread_world import ThreadWorld, run_world
from nextn.families.config import ModelConfig
from nextn.layers.expert_parallel import ParallelMoE
from nextn.layers.mlp import MoE
from nextn.layers.replicas import ExpertParallel
from nextn.layers.sharing import Sharing
from nextn.ops.base import Addend, Mixture

CPU = torch.device("cpu")


@settings(max_examples=60, derandomize=True, deadline=None)
@given(data=st.data())
def test_the_sums_of_one_device(data: st.DataObject) -> None:
    """Any numbers of rows, ranks, shards and replicas, and any routing."""
    draw = data.draw
    groups, ranks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    shards = draw(st.sampled_from([n for n in range(1, groups * ranks + 1) if groups * ranks % n == 0]))
    experts = draw(st.sampled_from([4, 8, 12]))
    config = tiny_config(
        hidden_size=draw(st.integers(12, 40)), moe_intermediate_size=draw(st.integers(12, 40)),
        n_routed_experts=experts, n_shared_experts=draw(st.integers(0, 1)),
        num_experts_per_tok=draw(st.integers(1, 4)), n_group=1, topk_group=1,
    )  # fmt: skip
    cfg, dtype = ModelConfig.from_dict(config), draw(st.sampled_from([torch.float32, torch.bfloat16]))
    spare = -experts % shards + shards * draw(st.integers(0, 2))
    gen = np.random.default_rng(draw(st.integers(0, 999)))
    slots = np.concatenate([np.arange(experts), gen.integers(0, experts, spare)])
    placement = Placement(gen.permuted(np.stack([slots] * 2), axis=1), experts)
    static = draw(st.booleans())
    rows = draw(st.lists(st.integers(0, 11), min_size=groups, max_size=groups))

    whole = MoE(Sharing(cfg, ExactReference(), dtype, CPU, Alone()))
    torch_gen = torch.Generator().manual_seed(int(gen.integers(999)))
    weights = whole.targets("")
    for weight in weights.values():
        weight.normal_(0, 0.3, generator=torch_gen)
    inputs = [torch.randn(-(-n // 8) * 8, cfg.hidden_size, generator=torch_gen).to(dtype) for n in rows]
    want = [made(whole.forward(x, batch_of(n))) if n else () for x, n in zip(inputs, rows, strict=True)]

    def compute(world: ThreadWorld) -> tuple[Tensor, ...]:
        sharing = Sharing(cfg, ExactReference(), dtype, CPU, world.attention)
        moe = ParallelMoE(sharing.over(ExpertParallel(world, placement, static)), 2)
        fill(moe, weights)
        if rows[world.group]:
            return moe.forward(inputs[world.group], batch_of(rows[world.group]))
        moe.idle()
        return ()

    for rank, found in enumerate(run_world(groups * ranks, groups, shards, compute)):
        same(found, want[rank // ranks])


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
