"""The dimensions of a synthetic checkpoint, and sizes that follow from them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from nextn.families.config import ModelConfig
from nextn.models.names import Shapes, expected_tensors, shared_tensors

BF16_BYTES = 2


@dataclass(frozen=True)
class Dimensions:
    """The dimensions, with DeepSeek-V3's names."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    max_position_embeddings: int = 4096

    def config_json(self) -> dict[str, Any]:
        """config.json with DeepSeek's keys. YaRN extends the context from a quarter of
        max_position_embeddings."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **dataclasses.asdict(self),
            "num_key_value_heads": self.num_attention_heads,
            "num_nextn_predict_layers": 1,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "ep_size": 1,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "moe_layer_freq": 1,
            "norm_topk_prob": True,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": self.max_position_embeddings // 4,
                "type": "yarn",
            },
            "rope_theta": 10000.0,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": False,
            "topk_method": "noaux_tc",
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }

    def check(self) -> ModelConfig:
        """Makes the config. Raises ValueError, which names a dimension that does not fit, and the fix."""
        for name, value in dataclasses.asdict(self).items():
            if value < (0 if name in ("first_k_dense_replace", "n_shared_experts") else 1):
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        return ModelConfig.from_dict(self.config_json(), "the dimensions")


PRESETS = {
    "69m": Dimensions(
        vocab_size=8192, hidden_size=512, num_hidden_layers=11, num_attention_heads=8, intermediate_size=1536,
        moe_intermediate_size=384, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=1,
        num_experts_per_tok=2, n_group=4, topk_group=2, q_lora_rank=192, kv_lora_rank=128,
        qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64,
    ),
    "1b": Dimensions(
        vocab_size=32768, hidden_size=1024, num_hidden_layers=16, num_attention_heads=16,
        intermediate_size=4096, moe_intermediate_size=512, first_k_dense_replace=1, n_routed_experts=32,
        n_shared_experts=1, num_experts_per_tok=4, n_group=8, topk_group=4, q_lora_rank=512,
        kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64,
    ),
    "glm-4.7-flash": Dimensions(
        vocab_size=154880, hidden_size=2048, num_hidden_layers=47, num_attention_heads=20,
        intermediate_size=10240, moe_intermediate_size=1536, first_k_dense_replace=1, n_routed_experts=64,
        n_shared_experts=1, num_experts_per_tok=4, n_group=1, topk_group=1, q_lora_rank=768, kv_lora_rank=512,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256,
    ),
}  # fmt: skip


def checkpoint_tensors(cfg: ModelConfig) -> Shapes:
    """All tensors of a checkpoint, including the NextN layer's copies of embedding and head."""
    return expected_tensors(cfg, 1) | shared_tensors(cfg, 1)


def parameters(cfg: ModelConfig) -> int:
    """Number of the target's parameters, including embedding and head, without the NextN layer."""
    return sum(math.prod(shape) for shape in expected_tensors(cfg, 0).values())


def bytes_per_token(cfg: ModelConfig) -> int:
    """Bytes of bf16 weights that the target reads for one decoded token: everything except the embedding
    table and the experts that were not chosen."""
    read = 0
    for name, shape in expected_tensors(cfg, 0).items():
        if name == "model.embed_tokens.weight":
            continue
        share = cfg.num_experts_per_tok / cfg.n_routed_experts if ".mlp.experts." in name else 1.0
        read += round(math.prod(shape) * share)
    return read * BF16_BYTES
