"""Logits equal transformers' to 1e-4, and equal to the bit however the sequence is cut into steps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.oracle import (
    DEEPSEEK_V2,
    DEEPSEEK_V2_LITE,
    GLM_FLASH,
    JOYAI_FLASH,
    load_oracle,
    oracle_logits,
    random_checkpoint,
)
from parity.paged import load_ours, paged_logits
from support.checkpoints import quantize_tensors, tiny_config, write_checkpoint
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

BOUND = 1e-4
LENGTH = 45  # not a multiple of the chunk (7) or of the page (4)
BEGINNING = 15


def yarn(**changes: float) -> dict[str, Any]:
    return {**tiny_config()["rope_scaling"], **changes}


NO_GROUPS = {"n_group": 1, "topk_group": 1}
CASES: dict[str, dict[str, Any]] = {
    "yarn, groups, q_lora, shared experts": {},
    "no yarn, no groups": {"rope_scaling": None, **NO_GROUPS, "rope_theta": 500.0},
    "yarn, mscale != mscale_all_dim": {"rope_scaling": yarn(factor=8, mscale=1.3, mscale_all_dim=0.6)},
    "yarn, no mscales, other betas": {
        "rope_scaling": {
            "type": "yarn", "factor": 6, "beta_fast": 8, "beta_slow": 2,
            "original_max_position_embeddings": 32,
        },
        "qk_rope_head_dim": 16,
    },
    "no q_lora": {"q_lora_rank": None},
    "no q_lora, no yarn, all groups open": {"q_lora_rank": None, "rope_scaling": None, "topk_group": 4},
    "dense only": {"first_k_dense_replace": 3},
    "moe only, one shared expert": {"first_k_dense_replace": 0, "n_shared_experts": 1},
    "norm_topk_prob false, three shared experts": {
        "norm_topk_prob": False, "n_shared_experts": 3, "routed_scaling_factor": 1.0, **NO_GROUPS,
    },
    "odd sizes, three heads": {
        "hidden_size": 50, "num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 37,
        "intermediate_size": 33, "moe_intermediate_size": 13, "q_lora_rank": 13, "kv_lora_rank": 17,
        "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 15, "n_routed_experts": 12,
    },
    "narrow heads": {  # so narrow that MKL's products depend on a row's place
        "hidden_size": 50, "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 10,
        "kv_lora_rank": 10, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 8,
    },
    "tied embeddings, six heads": {
        "tie_word_embeddings": True, "num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 72,
        "kv_lora_rank": 30, "v_head_dim": 20,
    },
    "other norm eps": {"rms_norm_eps": 1e-3},
    "GLM-4.7-Flash": GLM_FLASH,
    "GLM-4.7-Flash with yarn, groups, two dense layers": {
        **GLM_FLASH, "rope_scaling": yarn(), "n_group": 2, "first_k_dense_replace": 2,
    },
    "JoyAI-LLM-Flash": JOYAI_FLASH,
    "DeepSeek-V2": DEEPSEEK_V2,
    "DeepSeek-V2-Lite": DEEPSEEK_V2_LITE,
}  # fmt: skip


def prompt(vocab_size: int, length: int = LENGTH) -> list[int]:
    return random.Random(vocab_size + length).choices(range(vocab_size), k=length)


def compare(folder: Path, oracle_folder: Path | None = None, length: int = LENGTH) -> None:
    """Our logits against the oracle's: in one go, in chunks of 7 in company, and a beginning token by
    token."""
    oracle = load_oracle(oracle_folder or folder)
    tokens = prompt(oracle.config.vocab_size, length)
    want = oracle_logits(oracle, tokens)
    assert 0.3 < want.std() < 3, "logits of an ordinary size, or the bound means nothing"
    model = load_ours(folder)
    whole = paged_logits(model, tokens, chunk=length, page_size=4, seed=1)
    assert (whole - want).abs().max() < BOUND
    assert torch.equal(whole.argmax(-1), want.argmax(-1))
    chunked = paged_logits(model, tokens, chunk=7, page_size=4, seed=2, company=True)
    assert torch.equal(chunked, whole)
    single = paged_logits(model, tokens[:BEGINNING], chunk=1, page_size=4, seed=3)
    assert torch.equal(single, whole[:BEGINNING])


@pytest.mark.parametrize("name", CASES)
def test_logits(tmp_path: Path, name: str) -> None:
    seed = list(CASES).index(name)
    config, tensors = random_checkpoint(CASES[name], seed)
    compare(write_checkpoint(tmp_path, config, tensors))


def test_two_key_blocks_bf16_weights(tmp_path: Path) -> None:
    """More positions than one block of keys, and the weights' usual dtype, in several files."""
    config, tensors = random_checkpoint({"max_position_embeddings": 512, "num_hidden_layers": 2}, seed=20)
    stored = {n: t if n.endswith("correction_bias") else t.bfloat16() for n, t in tensors.items()}
    compare(write_checkpoint(tmp_path, config, stored, shards=3), length=290)


def test_fp8_blocks_with_partial_edges(tmp_path: Path) -> None:
    """FP8 on our side; what the format says they mean, worked out here, on the oracle's."""
    sizes = {
        "hidden_size": 200, "intermediate_size": 150, "moe_intermediate_size": 130, "q_lora_rank": 140,
        "kv_lora_rank": 136, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 2,
    }  # fmt: skip
    config, tensors = random_checkpoint(sizes, seed=21)
    stored = quantize_tensors(tensors, 128)
    blocks = [t for t in stored.values() if t.dtype == torch.float8_e4m3fn]
    assert any(t.shape[0] > 128 < t.shape[1] and t.shape[0] % 128 and t.shape[1] % 128 for t in blocks)
    quantization = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    config8 = {**config, "quantization_config": quantization}
    ours = write_checkpoint(tmp_path / "fp8", config8, stored, shards=2)
    plain = {
        name: dequantized(t, stored[f"{name}_scale_inv"]) if t.dtype == torch.float8_e4m3fn else t
        for name, t in stored.items()
        if not name.endswith("_scale_inv")
    }
    compare(ours, write_checkpoint(tmp_path / "plain", config, plain))


def dequantized(stored: Tensor, scale_inv: Tensor) -> Tensor:
    every = scale_inv.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return stored.float() * every[: stored.shape[0], : stored.shape[1]]


def test_two_threads(tmp_path: Path) -> None:
    """Sizes at which the products are really shared out among threads."""
    sizes = {
        "vocab_size": 2000, "hidden_size": 256, "intermediate_size": 700, "moe_intermediate_size": 200,
        "kv_lora_rank": 96, "q_lora_rank": 160, "num_hidden_layers": 2, "v_head_dim": 48,
    }  # fmt: skip
    config, tensors = random_checkpoint(sizes, seed=23)
    model = load_ours(write_checkpoint(tmp_path, config, tensors))
    tokens = prompt(2000, 200)
    torch.set_num_threads(2)
    try:
        whole = paged_logits(model, tokens, chunk=200, page_size=4, seed=1)
        chunked = paged_logits(model, tokens, chunk=128, page_size=4, seed=2, company=True)
        assert torch.equal(chunked, whole)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("sharded", [False, True])
def test_files_written_by_transformers(tmp_path: Path, sharded: bool) -> None:
    """Config, weights and index as transformers writes them; only the model's size is ours."""
    torch.manual_seed(22)
    keys = {k: v for k, v in tiny_config().items() if k not in ("architectures", "model_type")}
    theirs = DeepseekV3ForCausalLM(DeepseekV3Config(**keys, initializer_range=0.2))
    for layer in theirs.model.layers[1:]:
        torch.nn.init.normal_(layer.mlp.gate.e_score_correction_bias, std=0.1)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB" if sharded else "5GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == sharded
    compare(tmp_path)
