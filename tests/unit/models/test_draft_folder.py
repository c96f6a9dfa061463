"""Draft folders: every layout gives the same tensors under the target's names; what does not fit is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config, with_copies, write_sglang, write_target, write_xllm
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.models.draft_folder import OPTION, DraftFolder
from nextn.models.export import export_mtp
from nextn.models.fp8 import dequantize
from nextn.models.names import expected_tensors, nextn_tensors
from nextn.ops.stored import FP8, Format

CONFIG = tiny_config()
CFG = ModelConfig.from_dict(CONFIG)
TENSORS = with_copies(CONFIG, random_tensors(expected_tensors(CFG, 1), seed=6))
MODULE = {name: TENSORS[name] for name in nextn_tensors(CFG, 1)}


def export(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], **options: Any) -> Path:
    source = write_checkpoint(folder.with_name("source"), config, tensors, shards=3)
    export_mtp(source, folder, **options)
    return folder


def export_with_shared(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    return export(folder, config, tensors, with_shared=True)


def export_dequantized(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    return export(folder, config, tensors, dequantize=True)


LAYOUTS: dict[str, Callable[..., Path]] = {
    "export-mtp": export,
    "export-mtp, with shared": export_with_shared,
    "export-mtp, dequantized": export_dequantized,
    "SGLang": write_sglang,
    "xLLM": write_xllm,
    "whole checkpoint": write_checkpoint,
}
KEEP_FP8 = {"export-mtp", "export-mtp, with shared", "SGLang", "whole checkpoint"}


def loaded(draft: DraftFolder, cfg: ModelConfig = CFG, **options: Any) -> dict[str, tuple[Tensor, ...]]:
    placed: dict[str, tuple[Tensor, ...]] = {}

    def place(name: str, *tensors: Tensor) -> None:
        assert name not in placed
        placed[name] = tensors

    draft.load(cfg, 1, place, torch.bfloat16, **options)
    return placed


def same(placed: dict[str, tuple[Tensor, ...]], tensors: dict[str, Tensor]) -> None:
    assert placed.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert placed[name][0].dtype == tensor.dtype, name
        assert torch.equal(placed[name][0], tensor), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("changes", [{}, {"first_k_dense_replace": 3}, {"q_lora_rank": None}], ids=str)
def test_layouts(tmp_path: Path, layout: str, changes: dict[str, Any]) -> None:
    config = tiny_config(**changes)
    cfg = ModelConfig.from_dict(config)
    tensors = with_copies(config, random_tensors(expected_tensors(cfg, 1), seed=6))
    draft = DraftFolder.open(LAYOUTS[layout](tmp_path / "draft", config, tensors), cfg)
    assert draft.layers == 1
    same(loaded(draft, cfg), {name: tensors[name] for name in nextn_tensors(cfg, 1)})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_layouts(tmp_path: Path, layout: str) -> None:
    """Blocks of 16, so that edges are partial. Dequantized at load, or as they are stored."""
    stored = quantize_tensors(TENSORS, block=16)
    config = fp8_config(CONFIG, 16)
    cfg = ModelConfig.from_dict(config)
    draft = DraftFolder.open(LAYOUTS[layout](tmp_path / "draft", config, stored), cfg)
    blocks = {name for name in MODULE if name + "_scale_inv" in stored}
    assert len(blocks) > 20
    plain = {
        name: dequantize(stored[name], stored[name + "_scale_inv"], (16, 16), torch.bfloat16)
        if name in blocks
        else stored[name]
        for name in MODULE
    }
    same(loaded(draft, cfg), plain)
    kept = draft.stored_formats(cfg, 1)
    assert kept == dict.fromkeys(blocks if layout in KEEP_FP8 else (), Format(FP8, 16))
    for name, tensors in loaded(draft, cfg, as_stored=kept).items():
        if name in kept:
            scale = stored[name + "_scale_inv"].repeat_interleave(16, 0)[: len(stored[name])]
            assert torch.equal(tensors[0].view(torch.uint8), stored[name].view(torch.uint8)), name
            assert torch.equal(tensors[1], scale), name
        else:
            assert torch.equal(*tensors, plain[name]), name


def test_fp8_of_another_kind_than_the_target_is_dequantized(tmp_path: Path) -> None:
    folder = write_sglang(tmp_path / "draft", fp8_config(CONFIG, 16), quantize_tensors(TENSORS, 16))
    for config in (CONFIG, fp8_config(CONFIG, 32)):
        cfg = ModelConfig.from_dict(config)
        draft = DraftFolder.open(folder, cfg)
        assert draft.stored_formats(cfg, 1) == {}
        assert {t[0].dtype for t in loaded(draft, cfg).values()} == {torch.bfloat16, torch.float32}


def test_modules_that_are_not_used_are_skipped(tmp_path: Path) -> None:
    config = tiny_config(num_nextn_predict_layers=2)
    cfg = ModelConfig.from_dict(config)
    tensors = with_copies(config, random_tensors(expected_tensors(cfg, 2), seed=6))
    for write in (export, write_checkpoint):
        draft = DraftFolder.open(write(tmp_path / write.__name__, config, tensors), cfg)
        assert draft.layers == 2
        same(loaded(draft, cfg), {name: tensors[name] for name in nextn_tensors(cfg, 1)})


def test_a_target_whose_config_knows_of_no_module(tmp_path: Path) -> None:
    cfg = ModelConfig.from_dict(tiny_config(num_nextn_predict_layers=0))
    same(loaded(DraftFolder.open(write_sglang(tmp_path / "draft", CONFIG, TENSORS), cfg), cfg), MODULE)


YARN = CONFIG["rope_scaling"]
DIFFERENCES: list[tuple[str, Any]] = [
    ("hidden_size", 64), ("vocab_size", 47), ("num_attention_heads", 4), ("q_lora_rank", None),
    ("kv_lora_rank", 12), ("qk_nope_head_dim", 8), ("qk_rope_head_dim", 6), ("v_head_dim", 6),
    ("n_routed_experts", 16), ("n_shared_experts", 1), ("moe_intermediate_size", 8),
    ("num_experts_per_tok", 2), ("n_group", 2), ("topk_group", 3), ("norm_topk_prob", False),
    ("routed_scaling_factor", 1.0), ("rope_theta", 500.0), ("rms_norm_eps", 1e-5),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["SGLang", "xLLM", "whole checkpoint"])
@pytest.mark.parametrize(("key", "value"), DIFFERENCES, ids=[key for key, _ in DIFFERENCES])
def test_differences_are_named(tmp_path: Path, layout: str, key: str, value: Any) -> None:
    heads = {"num_key_value_heads": value} if key == "num_attention_heads" else {}
    target = ModelConfig.from_dict(tiny_config(**{key: value, **heads}))
    folder = LAYOUTS[layout](tmp_path / "draft", CONFIG, TENSORS)
    with pytest.raises(ValueError) as error:
        DraftFolder.open(folder, target)
    shown = f"{folder / 'config.json'}: the NextN layer does not fit the target: {key} is "
    assert str(error.value) == f"{shown}{getattr(CFG, key)!r}, the target's is {value!r}"


def test_all_differences_in_one_message(tmp_path: Path) -> None:
    folder = write_xllm(tmp_path / "draft", CONFIG, TENSORS)
    target = ModelConfig.from_dict(tiny_config(hidden_size=64, rope_scaling={**YARN, "factor": 8}))
    with pytest.raises(ValueError, match=r"hidden_size is 32, .* 64; rope_scaling is .*factor=4.*factor=8"):
        DraftFolder.open(folder, target)


def test_a_dense_target_asks_for_the_dense_width(tmp_path: Path) -> None:
    dense = tiny_config(n_routed_experts=None)
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(dense), 1))
    folder = write_checkpoint(tmp_path, dense, tensors)
    with pytest.raises(ValueError, match="intermediate_size is 40, the target's is 41"):
        DraftFolder.open(folder, ModelConfig.from_dict({**dense, "intermediate_size": 41}))


def test_another_number_of_layers(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, CONFIG, TENSORS)
    with pytest.raises(
        ValueError, match=r"num_hidden_layers 3; the target's num_hidden_layers is 4"
    ) as error:
        DraftFolder.open(folder, ModelConfig.from_dict(tiny_config(num_hidden_layers=4)))
    assert str(folder) in str(error.value)


def test_what_is_no_draft_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no such folder; {OPTION} must name"):
        DraftFolder.open(tmp_path / "nowhere", CFG)
    target = write_target(tmp_path / "target", CONFIG, TENSORS)
    with pytest.raises(ValueError, match=r"has no NextN layer; its tensors are lm_head\.weight, model\."):
        DraftFolder.open(target, CFG)
    data = {**CONFIG, "architectures": ["LlamaForCausalLM"]}
    (target / "config.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="'LlamaForCausalLM'"):
        DraftFolder.open(target, CFG)
    (target / "config.json").unlink()
    with pytest.raises(ValueError, match="no such file in the folder"):
        DraftFolder.open(target, CFG)


def test_missing_and_foreign_tensors_bear_the_folders_own_names(tmp_path: Path) -> None:
    tensors = dict(TENSORS)
    del tensors["model.layers.3.hnorm.weight"], tensors["model.layers.3.self_attn.o_proj.weight"]
    tensors["model.layers.3.rot.weight"] = torch.ones(2)
    tensors["model.layers.3.shared_head.head.weight"] = torch.ones(47, 32)
    draft = DraftFolder.open(write_xllm(tmp_path / "draft", CONFIG, tensors), CFG)
    with pytest.raises(ValueError) as error:
        loaded(draft)
    assert str(error.value).startswith(f"{draft.folder}: its tensors do not fit its config.json; 2 missing: ")
    for shown in (
        "model.hnorm.weight", "model.layers.0.self_attn.o_proj.weight",
        "1 unexpected: model.layers.0.rot.weight",
        "model.shared_head.head.weight is [47, 32], the config requires [48, 32]",
    ):  # fmt: skip
        assert shown in str(error.value)


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    name = "model.layers.3.eh_proj.weight"
    tensors = TENSORS | {name: TENSORS[name].clone().fill_(float("nan"))}
    draft = DraftFolder.open(export(tmp_path / "draft", CONFIG, tensors), CFG)
    with pytest.raises(
        CheckpointError, match=rf"model\.layers\.0\.eh_proj\.weight \({32 * 64} of {32 * 64}\)"
    ):
        loaded(draft)
    assert loaded(draft, allow_non_finite=True)[name][0].isnan().all()


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "n_routed_experts", "num_attention_heads"])
def test_sizes_that_no_machine_has(tmp_path: Path, field: str) -> None:
    folder = export(tmp_path / "draft", CONFIG, TENSORS)
    config = json.loads((folder / "config.json").read_text())
    config |= {field: 10**12, "num_key_value_heads": 10**12 if "heads" in field else 2}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"{field} is {10**12}, the target's is "):
        DraftFolder.open(folder, CFG)
