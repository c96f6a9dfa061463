"""deepseek2: DeepSeek-V3 and R1, GigaChat3, GLM-4.7-Flash, with MLA, experts in groups, and NextN layers.

Rotary pairs are interleaved in DeepSeek's original files too, so rows keep their order. llama.cpp splits
kv_b_proj in two (`KeyValueUp`). Files from before April 2025 have it whole, as attn_kv_b.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nextn.gguf.architectures import common
from nextn.gguf.header import Tensor
from nextn.gguf.metadata import Metadata
from nextn.gguf.names import KeyValueUp, Source, sources

_SELF = "model.layers.{layer}.self_attn."
NAMES = {
    **common.WHOLE,
    **common.NORMS,
    "blk.{layer}.attn_q.weight": _SELF + "q_proj.weight",
    "blk.{layer}.attn_q_a.weight": _SELF + "q_a_proj.weight",
    "blk.{layer}.attn_q_a_norm.weight": _SELF + "q_a_layernorm.weight",
    "blk.{layer}.attn_q_b.weight": _SELF + "q_b_proj.weight",
    "blk.{layer}.attn_kv_a_mqa.weight": _SELF + "kv_a_proj_with_mqa.weight",
    "blk.{layer}.attn_kv_a_norm.weight": _SELF + "kv_a_layernorm.weight",
    "blk.{layer}.attn_kv_b.weight": _SELF + "kv_b_proj.weight",
    "blk.{layer}.attn_output.weight": _SELF + "o_proj.weight",
    **common.MLP,
    **common.EXPERTS,
    **common.NEXTN,
}
KEYS, VALUES = ".attn_k_b.weight", ".attn_v_b.weight"
# Files from before October 2025 do not say how many groups the experts of DeepSeek-V3 have.
V3_EXPERTS, V3_HIDDEN, V3_GROUPS = 256, 7168, {"n_group": 8, "topk_group": 4}
# Files of GLM-4.7-Flash from January 2026 do not say that its routers use the sigmoid.
GLM_VOCABULARY = 154880


def config(meta: Metadata, tensors: Mapping[str, Tensor], weights: object = None) -> dict[str, Any]:
    found = common.sizes(meta, tensors)
    rope = meta.integer(".rope.dimension_count")
    key = meta.integer(".attention.key_length_mla", meta.integer(".attention.key_length"))
    if key <= rope:
        raise meta.error(".rope.dimension_count", f"it must be less than the width of keys, {key}")
    glm = found["vocab_size"] == GLM_VOCABULARY
    found |= {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": found["num_attention_heads"],
        "q_lora_rank": meta.integer(".attention.q_lora_rank", None),
        "kv_lora_rank": meta.integer(".attention.kv_lora_rank"),
        "qk_nope_head_dim": key - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": meta.integer(".attention.value_length_mla", meta.integer(".attention.value_length")),
        "rope_scaling": _rope_scaling(meta),
        **common.moe(meta, tensors, "sigmoid" if glm else "softmax"),
    }
    grouped = ".expert_group_count" in meta
    if not grouped and (found["n_routed_experts"], found["hidden_size"]) == (V3_EXPERTS, V3_HIDDEN):
        found |= V3_GROUPS
    return found


def _rope_scaling(meta: Metadata) -> dict[str, Any] | None:
    """The file has a tenth of mscale_all_dim, and no mscale. In all DeepSeek models, both are equal."""
    found, tenth = common.rope_scaling(meta), meta.number(".rope.scaling.yarn_log_multiplier", None)
    if found is not None and tenth:
        found["mscale"] = found["mscale_all_dim"] = round(tenth * 10, 5)
    return found


def tensors(meta: Metadata, found: Mapping[str, Tensor]) -> dict[str, Source]:
    made = sources(found, NAMES, common.experts(meta))
    for name in list(made):
        layer = name.removesuffix(KEYS)
        if layer != name and layer + VALUES in made:
            del made[name], made[layer + VALUES]
            up = f"model.layers.{layer.removeprefix('blk.')}.self_attn.kv_b_proj.weight"
            made[up] = KeyValueUp(name, layer + VALUES, common.heads(meta))
    return made
