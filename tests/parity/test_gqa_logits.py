"""Families with grouped-query attention: logits equal transformers' to 1e-4, and equal to the bit however the
sequence is cut into steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parity.engine_steps import make_engine, run
from parity.oracle import load_oracle, oracle_logits, random_checkpoint
from parity.test_transformers_logits import compare, dequantized
from support.checkpoints import quantize_tensors, write_checkpoint
from torch import float8_e4m3fn

from nextn.request import SamplingParams

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
GLM, MIMO = "Glm4MoeForCausalLM", "MiMoForCausalLM"
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama, llama3 scaling, biases": (LLAMA, {"rope_scaling": LLAMA3, "attention_bias": True}),
    "llama, linear scaling, tied, own head_dim": (
        LLAMA,
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "tie_word_embeddings": True, "head_dim": 12},
    ),
    "llama, a key for each head": (LLAMA, {"num_key_value_heads": 6}),
    "llama, one key for all heads": (LLAMA, {"num_key_value_heads": 1, "num_attention_heads": 3}),
    "qwen2": (QWEN2, {}),
    "qwen3": (QWEN3, {"tie_word_embeddings": True}),
    "qwen3, yarn, biases": (
        QWEN3,
        {
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            "attention_bias": True,
        },
    ),
    "mimo": (MIMO, {"rope_theta": 640000.0}),
    "glm": (GLM, {}),
    "glm, groups, no norms or biases": (
        GLM,
        {"use_qk_norm": False, "attention_bias": False, "n_group": 4, "topk_group": 2},
    ),
    "glm, a quarter rotated, odd sizes": (
        GLM,
        {
            "partial_rotary_factor": 0.25, "head_dim": 24, "hidden_size": 50, "num_attention_heads": 9,
            "num_key_value_heads": 3, "vocab_size": 37, "intermediate_size": 33, "moe_intermediate_size": 13,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits(tmp_path: Path, name: str) -> None:
    architecture, changes = CASES[name]
    config, tensors = random_checkpoint(changes, list(CASES).index(name), architecture)
    compare(write_checkpoint(tmp_path, config, tensors))


def test_two_key_blocks_bf16_weights(tmp_path: Path) -> None:
    """More positions than one block of keys, and the weights' usual dtype, in several files."""
    sizes = {"max_position_embeddings": 512, "num_hidden_layers": 2}
    config, tensors = random_checkpoint(sizes, 20, GLM)
    stored = {n: t if n.endswith("correction_bias") else t.bfloat16() for n, t in tensors.items()}
    compare(write_checkpoint(tmp_path, config, stored, shards=3), length=290)


def test_fp8_blocks_that_cut_heads(tmp_path: Path) -> None:
    """FP8 on our side; what the format says they mean, worked out here, on the oracle's. A head's rows, whose
    order changes, have scales of two blocks."""
    sizes = {"hidden_size": 200, "intermediate_size": 150, "head_dim": 48, "num_hidden_layers": 2}
    config, tensors = random_checkpoint(sizes, 21, QWEN3)
    stored = quantize_tensors(tensors, 128)
    quantization = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    ours = write_checkpoint(tmp_path / "fp8", {**config, "quantization_config": quantization}, stored)
    plain = {
        name: dequantized(t, stored[f"{name}_scale_inv"]) if t.dtype == float8_e4m3fn else t
        for name, t in stored.items()
        if not name.endswith("_scale_inv")
    }
    compare(ours, write_checkpoint(tmp_path / "plain", config, plain))


@pytest.mark.parametrize("name", ["llama, llama3 scaling, biases", "qwen2", "qwen3"])
def test_an_engines_greedy_text(tmp_path: Path, name: str) -> None:
    """Drafted by n-grams; every token is the best by transformers' logits."""
    architecture, changes = CASES[name]
    config, tensors = random_checkpoint(changes, 8, architecture)
    folder = write_checkpoint(tmp_path, config, tensors)
    prompt = [7, 3, 9, 7, 3, 9, 7, 3]
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    trace = run(make_engine(folder, 2, speculative_algorithm="NGRAM"), {"a": (prompt, params)})["a"]
    assert len(trace.tokens) == len(prompt) + 24
    best = oracle_logits(load_oracle(folder), trace.tokens[:-1]).argmax(-1)
    assert trace.tokens[len(prompt) :] == best[len(prompt) - 1 :].tolist()
