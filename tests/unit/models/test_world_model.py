"""Groups that share their experts have the bits of one device: hidden states, logits, drafts and caches."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config
from support.sharing import CONFIG, ExactReference, same, shared_model
from support.worlds import group_steps, placed, run_steps, world_model
from torch import Tensor

from nextn.distributed.thread_world import ThreadWorld, run_world
from nextn.families.config import ModelConfig
from nextn.layers.expert_parallel import ParallelMoE
from nextn.models.dummy import dummy_checkpoint
from nextn.models.loader import load_checkpoint
from nextn.models.names import expected_tensors, shared_tensors

F32, BF16 = torch.float32, torch.bfloat16
SMALL = tiny_config(num_attention_heads=4, num_key_value_heads=4)
# (groups, ranks of each, shards)
WORLDS = [
    (groups, ranks, shards)
    for groups in (1, 2, 4)
    for ranks in (1, 2)
    for shards in (1, 2, 4)
    if groups * ranks % shards == 0
]


@cache
def alone(name: str, groups: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """What one device finds of each group's steps."""
    config, ops = CASES[name]
    model = shared_model(config, ops=ops, dtype=dtype)
    return [run_steps(model, group_steps(group)) for group in range(groups)]


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "exact": (SMALL, ExactReference()),  # which splits every product
    "odd": (
        {**SMALL, "hidden_size": 30, "moe_intermediate_size": 7, "n_shared_experts": 0,
         "first_k_dense_replace": 0, "num_hidden_layers": 2, "tie_word_embeddings": True},
        ExactReference(),
    ),
    "BLAS": (CONFIG, "reference"),
}  # fmt: skip


def compare(
    name: str, world: tuple[int, int, int], dtype: torch.dtype, phy2log: NDArray[np.int32] | None = None,
    static: bool = False,
) -> None:  # fmt: skip
    config, ops = CASES[name]
    groups, ranks, shards = world

    def steps(world: ThreadWorld) -> list[Tensor]:
        return run_steps(
            world_model(config, world, phy2log, static, ops=ops, dtype=dtype), group_steps(world.group)
        )

    want = alone(name, groups, dtype)
    for rank, found in enumerate(run_world(groups * ranks, groups, shards, steps)):
        same(found, want[rank // ranks])


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_every_product_in_parts(world: tuple[int, int, int]) -> None:
    for name, dtype in (("exact", F32), ("exact", BF16), ("odd", BF16)):
        compare(name, world, dtype)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("world", [(2, 1, 2), (2, 1, 1), (2, 2, 2), (4, 1, 4)], ids=str)
def test_products_of_this_machine(world: tuple[int, int, int], dtype: torch.dtype) -> None:
    """What its BLAS computes otherwise in parts is not split."""
    compare("BLAS", world, dtype)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("world", [(1, 1, 1), (2, 1, 2), (2, 2, 2), (4, 1, 4)], ids=str)
def test_a_placement_changes_no_bit(world: tuple[int, int, int], static: bool) -> None:
    for spare, seed in ((0, 1), (8, None), (8, 2), *(((2, 3),) if world[2] < 4 else ())):
        compare("exact", world, BF16, placed(SMALL, spare, seed), static)
