"""Writes small checkpoints for tests, in DeepSeek's layout.

from support.checkpoints import quantize_fp8, write_checkpoint
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nextn.families.deepseek_v3 import NAMES
from nextn.models.dummy import dummy_checkpoint

E4M3_MAX = 448.0
GQA_TYPES = {
    "Glm4MoeForCausalLM": "glm4_moe", "LlamaForCausalLM": "llama", "MiMoForCausalLM": "mimo",
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
}  # fmt: skip


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A config.json with every feature except FP8: yarn, groups, shared experts, q_lora, one NextN layer."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 40, "moe_intermediate_size": 16,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 8, "n_shared_experts": 2,
        "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "max_position_embeddings": 256, "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
        },
        "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False, "attention_bias": False, "hidden_act": "silu",
        **changes,
    }  # fmt: skip


def gqa_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a family with grouped-query attention: six heads share two key-value heads."""
    config: dict[str, Any] = {
        "architectures": [architecture], "model_type": GQA_TYPES[architecture],
        "vocab_size": 48, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 256,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1,
        "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    if architecture == "Glm4MoeForCausalLM":
        config |= {
            "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5,
            "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_routed_experts": 8,
            "n_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
        }  # fmt: skip
    elif architecture == "MiMoForCausalLM":
        config |= {"num_nextn_predict_layers": 1, "attention_bias": True}
    elif architecture == "Qwen3ForCausalLM":
        config |= {"head_dim": 16}
    return {**config, **changes}


def random_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Random weights with these names and shapes."""
    made: dict[str, Tensor] = {}
    dummy_checkpoint(NAMES, shapes, made.__setitem__, seed, dtype)
    return made


def write_checkpoint(
    folder: Path, cfg_dict: Mapping[str, Any], tensors: Mapping[str, Tensor], shards: int = 1
) -> Path:
    """Writes config.json and model.safetensors, or an index and `shards` files among which the tensors are
    distributed in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(cfg_dict), indent=2))
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    weight_map = {name: files[i % shards] for i, name in enumerate(tensors)}
    for file in files:
        part = {name: t for name, t in tensors.items() if weight_map[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def quantize_fp8(weight: Tensor, block: int = 128) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> (e4m3 [N, K], scale_inv f32 [ceil(N/block), ceil(K/block)])."""
    n, k = weight.shape
    stored = torch.empty(n, k, dtype=torch.float8_e4m3fn)
    scale_inv = torch.empty(-(-n // block), -(-k // block))
    for i in range(scale_inv.shape[0]):
        for j in range(scale_inv.shape[1]):
            at = (slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block))
            part = weight[at].float()
            scale = part.abs().max() / E4M3_MAX
            scale_inv[i, j] = scale if scale > 0 else 1.0
            stored[at] = (part / scale_inv[i, j]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return stored, scale_inv


def quantize_tensors(tensors: Mapping[str, Tensor], block: int = 128) -> dict[str, Tensor]:
    """A checkpoint's tensors as DeepSeek publishes them: the linear layers in decoder layers are FP8."""
    made: dict[str, Tensor] = {}
    for name, t in tensors.items():
        if "_proj" in name and t.dim() == 2 and not name.endswith("eh_proj.weight"):
            made[name], made[name + "_scale_inv"] = quantize_fp8(t, block)
        else:
            made[name] = t
    return made
