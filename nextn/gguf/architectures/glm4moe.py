"""glm4moe: GLM-4.5 to 4.7. They have GQA with a part of each head rotated, experts, and NextN layers like
DeepSeek's. Rows are in the order of GLM's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nextn.gguf.architectures import common
from nextn.gguf.header import Tensor
from nextn.gguf.metadata import Metadata
from nextn.gguf.names import Source, sources

_NORMS = {
    "blk.{layer}.attn_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "blk.{layer}.post_attention_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
}
NAMES = {
    **common.WHOLE,
    **_NORMS,
    **common.ATTENTION,
    **common.HEAD_NORMS,
    **common.MLP,
    **common.EXPERTS,
    **common.NEXTN,
}


def config(meta: Metadata, tensors: Mapping[str, Tensor], weights: object = None) -> dict[str, Any]:
    dim = common.head_dim(meta)
    turning = meta.integer(".rope.dimension_count", dim // 2)
    if not 0 < turning <= dim:
        raise meta.error(".rope.dimension_count", f"it must be between 1 and the width of heads, {dim}")
    return {
        **common.sizes(meta, tensors),
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_key_value_heads": common.key_value_heads(meta),
        "head_dim": dim,
        "partial_rotary_factor": turning / dim,
        "attention_bias": any(name.endswith(".attn_q.bias") for name in tensors),
        "use_qk_norm": any(name.endswith(".attn_q_norm.weight") for name in tensors),
        "rope_scaling": common.rope_scaling(meta),
        **common.moe(meta, tensors, "sigmoid"),
    }


def tensors(meta: Metadata, found: Mapping[str, Tensor]) -> dict[str, Source]:
    return sources(found, NAMES, common.experts(meta))
