"""Layers held in e4m3 blocks compute with the values of the widened ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import gqa_config, quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config
from support.sharing import ExactReference, all_steps, same
from support.thread_ranks import run_ranks
from support.thread_world import ThreadWorld, run_world
from support.torch_worlds import group_steps, placed, run_steps
from torch import Tensor

from nextn.distributed.group import Alone, Group
from nextn.distributed.placement import Placement, moves
from nextn.families.config import ModelConfig
from nextn.layers.expert_slots import ExpertSlots
from nextn.layers.replicas import ExpertParallel
from nextn.models.fp8 import block_layers
from nextn.models.loader import load_checkpoint, stored_formats
from nextn.models.names import expected_tensors, shared_tensors
from nextn.models.torch_model import TorchModel
from nextn.ops.base import Ops
from nextn.ops.stored import FP8, Format

F32, CPU, BLOCK = torch.float32, torch.device("cpu"), 16
CONFIGS = {
    "MLA": tiny_config(num_hidden_layers=2),
    "MLA, queries from one matrix": tiny_config(num_hidden_layers=2, q_lora_rank=None),
    "GQA": gqa_config("Glm4MoeForCausalLM", num_hidden_layers=2),
}


def checkpoint(folder: Path, config: dict[str, Any], **plain: Tensor) -> ModelConfig:
    """plain: tensors that are not in FP8."""
    config = fp8_config(config, BLOCK)
    cfg = ModelConfig.from_dict(config)
    tensors = random_tensors(expected_tensors(cfg, 1), seed=3)
    write_checkpoint(folder, config, quantize_tensors(tensors, BLOCK) | plain)
    return cfg


def loaded(
    folder: Path, cfg: ModelConfig, ops: Ops, blocks: dict[int, int], group: Group = Alone(),  # noqa: B008
    experts: ExpertParallel | None = None,
) -> TorchModel:  # fmt: skip
    model = TorchModel(cfg, ops, F32, CPU, 1, group=group, experts=experts, blocks=blocks)
    load_checkpoint(
        folder, expected_tensors(cfg, 1), model.place, quantization=cfg.quantization, dtype=F32,
        shared=shared_tensors(cfg, 1), as_stored=model.as_stored, rows=model.rows(),
    )  # fmt: skip
    return model


def layers(folder: Path, cfg: ModelConfig) -> dict[int, int]:
    return block_layers(cfg, 1, stored_formats(folder, cfg.quantization))


@pytest.mark.parametrize("name", CONFIGS)
def test_values_are_those_of_the_widened_weights(tmp_path: Path, name: str) -> None:
    cfg = checkpoint(tmp_path, CONFIGS[name])
    blocks = layers(tmp_path, cfg)
    assert blocks == dict.fromkeys(range(3), BLOCK)
    model, plain = (loaded(tmp_path, cfg, ExactReference(), some) for some in (blocks, {}))
    assert model.as_stored
    assert not plain.as_stored
    assert model.weight_bytes < 0.7 * plain.weight_bytes
    same(all_steps(model), all_steps(plain))


def test_ranks_have_the_bits_of_one_device(tmp_path: Path) -> None:
    """Their rows begin and end within blocks."""
    cfg = checkpoint(tmp_path, tiny_config(num_attention_heads=3, num_key_value_heads=3))
    blocks = layers(tmp_path, cfg)
    want = all_steps(loaded(tmp_path, cfg, ExactReference(), blocks))
    for found in run_ranks(3, lambda g: all_steps(loaded(tmp_path, cfg, ExactReference(), blocks, g))):
        same(found, want)


def test_so_have_ranks_that_share_experts(tmp_path: Path) -> None:
    """Two slices of each, in two shards; then all have moved."""
    config = tiny_config(num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2)
    cfg = checkpoint(tmp_path, config)
    blocks = layers(tmp_path, cfg)
    alone = loaded(tmp_path, cfg, ExactReference(), blocks)
    want = [run_steps(alone, group_steps(group)) for group in range(2)]
    before, after = placed(config, 2, 1), placed(config, 2, 4)

    def steps(world: ThreadWorld) -> list[list[Tensor]]:
        experts = ExpertParallel(world, before)
        model = loaded(tmp_path, cfg, ExactReference(), blocks, world.attention, experts)
        found = [run_steps(model, group_steps(world.group))]
        swap(world, [ExpertSlots(moe) for moe in model.parallel], before, after)
        return [*found, run_steps(model, group_steps(world.group))]

    for rank, found in enumerate(run_world(4, 2, 2, steps)):
        same(found[0], want[rank // 2])
        same(found[1], want[rank // 2])


def swap(world: ThreadWorld, tables: Sequence[ExpertSlots], before: Placement, after: Placement) -> None:
    """Every expert that changes its slot, by way of all ranks' memory."""
    each = before.slots // world.shards
    first = world.shard * each
    for row, table in enumerate(tables):
        own = [np.empty(table.size(0), np.uint8) for _ in range(each)]
        for member, data in enumerate(own):
            table.read(member, data)
        slices = world.exchange([torch.from_numpy(np.stack(own))] * world.size, [each] * world.size)
        of_slice = torch.cat(slices[world.rank % world.slices :: world.slices])  # by slot
        for slot, source in moves(before, after, world.shards)[row]:
            if first <= slot < first + each:
                table.write(slot - first, of_slice[source].numpy())
        table.take(after, row)


@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="needs triton's interpreter")
def test_triton_kernels(tmp_path: Path) -> None:
    from nextn.ops.triton.ops import TritonOps

    config = tiny_config(
        num_hidden_layers=2, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2
    )
    cfg = checkpoint(tmp_path, config)
    plain = all_steps(loaded(tmp_path, cfg, ExactReference(), {}), count=1)  # the interpreter is slow
    found = all_steps(loaded(tmp_path, cfg, TritonOps(), layers(tmp_path, cfg)), count=1)
    for got, want in zip(found, plain, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def test_a_layer_with_a_plain_matrix_is_widened(tmp_path: Path) -> None:
    plain = {"model.layers.1.mlp.experts.5.up_proj.weight": torch.zeros(16, 32)}
    cfg = checkpoint(tmp_path, tiny_config(), **plain)
    assert layers(tmp_path, cfg) == {0: BLOCK, 2: BLOCK, 3: BLOCK}


@pytest.mark.parametrize("group", [8, 24])
def test_blocks_that_no_step_of_a_kernel_fits(tmp_path: Path, group: int) -> None:
    cfg = ModelConfig.from_dict(fp8_config(tiny_config(), group))
    stored = dict.fromkeys(expected_tensors(cfg, 1), Format(FP8, group))
    assert block_layers(cfg, 1, stored) == {}
