"""Groups that share their experts have the bits of one device: hidden states, logits, drafts and caches."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.all_cases import few_or_all
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config
from support.sharing import CONFIG, ExactReference, same, shared_model
from support.thread_world import ThreadWorld, run_world
from support.torch_worlds import group_steps, placed, run_steps, world_model
from torch import Tensor

from nextn.distributed.placement import Placement
from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.layers.expert_parallel import ParallelMoE
from nextn.models.dummy import dummy_checkpoint
from nextn.models.loader import load_checkpoint
from nextn.models.names import expected_tensors, shared_tensors

F32, BF16 = torch.float32, torch.bfloat16
SMALL = tiny_config(num_attention_heads=4, num_key_value_heads=4)
# Groups, ranks of each, shards. Of both cases in which every product is split, each has every other world.
WORLDS = [(1, 2, 2), (2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 4), (4, 1, 2), (4, 2, 4)]
SPLIT = [("odd", F32), ("exact", BF16)]
IN_PARTS = few_or_all(
    [(world, *SPLIT[i % 2]) for i, world in enumerate(WORLDS)],
    [(world, *SPLIT[1 - i % 2]) for i, world in enumerate(WORLDS)],
)


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
    name: str, world: tuple[int, int, int], dtype: torch.dtype, placement: Placement | None = None,
    static: bool = False,
) -> None:  # fmt: skip
    config, ops = CASES[name]
    groups, ranks, shards = world

    def steps(world: ThreadWorld) -> list[Tensor]:
        return run_steps(
            world_model(config, world, placement, static, ops=ops, dtype=dtype), group_steps(world.group)
        )

    want = alone(name, groups, dtype)
    for rank, found in enumerate(run_world(groups * ranks, groups, shards, steps)):
        same(found, want[rank // ranks])


@pytest.mark.parametrize(("world", "name", "dtype"), IN_PARTS, ids=str)
def test_every_product_in_parts(world: tuple[int, int, int], name: str, dtype: torch.dtype) -> None:
    compare(name, world, dtype)


@pytest.mark.parametrize("world", few_or_all([(2, 2, 2)], [(4, 1, 4)]), ids=str)
def test_products_of_this_machine(world: tuple[int, int, int]) -> None:
    """What its BLAS computes otherwise in parts is not split. In bf16, in which many take long:
    tests/unit/distributed/test_torch_world.py."""
    compare("BLAS", world, F32)


@pytest.mark.parametrize(
    ("world", "static"), [((2, 1, 2), True), ((2, 2, 2), False), ((4, 1, 4), True)], ids=str
)
def test_a_placement_changes_no_bit(world: tuple[int, int, int], static: bool) -> None:
    for spare, seed in ((0, 1), (8, None), *(((2, 3),) if world[2] < 4 else ())):
        compare("exact", world, BF16, placed(SMALL, spare, seed), static)


def test_drafts_are_a_group_s_own() -> None:
    """NextN layers have all experts and exchange nothing: each group drafts as often as it wants."""

    def steps(world: ThreadWorld) -> None:
        model = world_model(SMALL, world, ops=ExactReference())
        assert [len(layer.mlp.held) for layer in model.layers[1:]] == [2, 2]
        assert [len(module.layer.mlp.held) for module in model.nextn] == [8]
        pool = KVPool(4, 4, 4, model.cache_layout, model.dtype, model.device)
        batch = model.batch([Span([1, 2, 3], 0, [1])], 4)
        for _ in range(world.group):
            model.draft(batch, torch.zeros(len(batch.tokens), 32), pool)

    run_world(4, 4, 4, steps, timeout=20)


def parts(config: dict[str, Any], sizes: tuple[int, int, int], spare: int) -> list[Any]:
    """targets() and rows() of every rank's model, and how many experts its MoE layers hold."""
    groups, ranks, shards = sizes

    def made(world: ThreadWorld) -> tuple[dict[str, Tensor], dict[str, range], list[int]]:
        model = world_model(config, world, placed(config, spare), ops=ExactReference())
        for target in model.targets().values():
            target.fill_(torch.nan)
        layers = (layer.mlp for layer in model.layers)
        return model.targets(), model.rows(), [len(m.held) for m in layers if isinstance(m, ParallelMoE)]

    return run_world(groups * ranks, groups, shards, made)


@pytest.mark.parametrize("sizes", [(2, 1, 2), (2, 2, 2), (4, 1, 4)], ids=str)
def test_a_rank_reads_its_experts_only(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    """And of these the rows of its slice, which may begin within a block of FP8."""
    config = fp8_config({**SMALL, "moe_intermediate_size": 40}, 16)
    cfg = ModelConfig.from_dict(config)
    expected = expected_tensors(cfg, 1)
    stored = quantize_tensors(random_tensors(expected, seed=5), block=16)
    write_checkpoint(tmp_path, config, stored, shards=3)

    def load(targets: dict[str, Tensor], rows: dict[str, range] | None = None) -> int:
        def place(name: str, tensor: Tensor) -> None:
            targets[name].copy_(tensor)

        return load_checkpoint(
            tmp_path, expected, place, quantization=cfg.quantization, dtype=F32,
            shared=shared_tensors(cfg, 1), rows=rows,
        ).bytes  # fmt: skip

    whole = {name: torch.empty(shape) for name, shape in expected.items()}
    everything = load(whole)
    ranks = parts(config, sizes, spare=8 if sizes[2] == 4 else 0)
    for targets, rows, counts in ranks:
        assert counts == [8 // sizes[2] * (2 if sizes[2] == 4 else 1)] * 2
        assert load(targets, rows) < 0.8 * everything
        assert targets.keys() == expected.keys()
        for name, tensor in whole.items():
            own = rows.get(name, range(len(tensor)))
            assert torch.equal(targets[name], tensor[own.start : own.stop]), name
    for name in expected:
        if ".experts." in name:
            copies = sum(len(targets[name]) for targets, _, _ in ranks)
            assert copies >= len(whole[name]), name


def test_dummy_weights_are_parts_of_the_whole() -> None:
    cfg = ModelConfig.from_dict(SMALL)
    expected = expected_tensors(cfg, 1)
    whole: dict[str, Tensor] = {}
    dummy_checkpoint(cfg.names, expected, whole.__setitem__, 3, F32)
    for targets, rows, _ in parts(SMALL, (2, 2, 2), 0):
        dummy_checkpoint(
            cfg.names, expected, lambda name, t, to=targets: to[name].copy_(t), 3, F32, rows=rows
        )
        for name, tensor in whole.items():
            own = rows.get(name, range(len(tensor)))
            assert torch.equal(targets[name], tensor[own.start : own.stop]), name


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (placed(SMALL, 1), r"9 physical experts \(8 and 1 spare\) cannot be divided evenly among 2 shards"),
        (placed({**SMALL, "num_hidden_layers": 4}, 0), "8 experts in 3 layers; the model has 8 in 2"),
        (placed({**SMALL, "n_routed_experts": 10}, 0), "10 experts in 2 layers; the model has 8 in 2"),
    ],
    ids=["uneven", "layers", "experts"],
)
def test_placements_that_are_refused(placement: Placement, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_world(2, 2, 2, lambda world: world_model(SMALL, world, placement, ops=ExactReference()))
