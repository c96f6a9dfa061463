"""DeepSeek-V3 and what names itself so (R1, V3.1, GigaChat3): MLA, experts chosen by groups, NextN modules
behind the last layer.

Keys of config.json have DeepSeek's names. Absent keys have the defaults of transformers' DeepseekV3Config,
except sizes, which are required, and n_routed_experts and num_nextn_predict_layers, which are 0. A value that
nextn does not compute is refused.
"""

from __future__ import annotations

from typing import Any

from nextn.families.config import ModelConfig, YarnScaling
from nextn.families.fields import Fields
from nextn.families.mtp import MTPSpec
from nextn.families.names import TensorNames
from nextn.families.quantization import quantization

NAMES = TensorNames(
    embedding="model.embed_tokens.weight",
    norm="model.norm.weight",
    head="lm_head.weight",
    layer="model.layers.{layer}.",
    attention_norm="input_layernorm.weight",
    q_proj="self_attn.q_proj.weight",
    q_down="self_attn.q_a_proj.weight",
    q_norm="self_attn.q_a_layernorm.weight",
    q_up="self_attn.q_b_proj.weight",
    kv_down="self_attn.kv_a_proj_with_mqa.weight",
    kv_norm="self_attn.kv_a_layernorm.weight",
    kv_up="self_attn.kv_b_proj.weight",
    out="self_attn.o_proj.weight",
    mlp_norm="post_attention_layernorm.weight",
    mlp="mlp.",
    router="mlp.gate.weight",
    router_bias="mlp.gate.e_score_correction_bias",
    expert="mlp.experts.{expert}.",
    shared_experts="mlp.shared_experts.",
    gate="gate_proj.weight",
    up="up_proj.weight",
    down="down_proj.weight",
)

MTP = MTPSpec(
    prefix="model.layers.{layer}.",
    embedding_norm="enorm.weight",
    hidden_norm="hnorm.weight",
    projection="eh_proj.weight",
    output_norm="shared_head.norm.weight",
    embedding_copy="embed_tokens.weight",
    head_copy="shared_head.head.weight",
    embedding_first=True,
    masks_first=False,
    dense=False,
    exported=("DeepseekV3ForCausalLMNextN", "DeepseekMTPForCausalLM"),  # SGLang's and xLLM's
    own_prefix="model.",
)

ROPE_KEYS = {
    "type", "rope_type", "rope_theta", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "partial_rotary_factor", "attention_factor", "truncate",
}  # fmt: skip


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """config.json, and generation_config.json's end tokens. name: of the architecture."""
    f.only("hidden_act", "silu")
    f.only("attention_bias", False)
    f.only("rope_interleave", True)
    heads = f.integer("num_attention_heads")
    f.only("num_key_value_heads", heads, None)
    layers = f.integer("num_hidden_layers")
    vocab_size = f.integer("vocab_size")
    rope_theta, rope_scaling = _rope(f)
    rope_dim = f.integer("qk_rope_head_dim")
    if rope_dim % 2:
        raise f.error("qk_rope_head_dim", "it must be even")
    eos = _token_ids(f, vocab_size, default=1)
    if generation is not None:
        eos += _token_ids(generation, vocab_size, default=None)
    bos = f.get("bos_token_id", 0)
    return ModelConfig(
        architecture=name,
        vocab_size=vocab_size,
        hidden_size=f.integer("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=f.integer("intermediate_size"),
        **_experts(f, layers),
        q_lora_rank=None if f.get("q_lora_rank") is None else f.integer("q_lora_rank"),
        kv_lora_rank=f.integer("kv_lora_rank"),
        qk_nope_head_dim=f.integer("qk_nope_head_dim"),
        qk_rope_head_dim=rope_dim,
        v_head_dim=f.integer("v_head_dim"),
        max_position_embeddings=f.integer("max_position_embeddings", 4096),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        rms_norm_eps=f.number("rms_norm_eps", 1e-6),
        bos_token_id=None if bos is None else f.integer("bos_token_id", 0, least=0),
        eos_token_ids=tuple(dict.fromkeys(eos)),
        num_nextn_predict_layers=f.integer("num_nextn_predict_layers", 0, least=0),
        tie_word_embeddings=f.boolean("tie_word_embeddings", False),
        quantization=quantization(f),
    )


def _experts(f: Fields, layers: int) -> dict[str, Any]:
    """The MoE part of the config. Dense only: no experts, or every layer is among the first dense ones."""
    routed = 0 if f.get("n_routed_experts", None) is None else f.integer("n_routed_experts", least=0)
    dense = f.integer("first_k_dense_replace", 3, least=0)
    if routed == 0 or dense >= layers:
        return {
            "moe_intermediate_size": 0, "first_k_dense_replace": layers, "n_routed_experts": 0,
            "n_shared_experts": 0, "num_experts_per_tok": 0, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 1.0,
        }  # fmt: skip
    f.only("moe_layer_freq", 1)
    f.only("scoring_func", "sigmoid")
    f.only("topk_method", "noaux_tc")
    shared = 0 if f.get("n_shared_experts", 1) is None else f.integer("n_shared_experts", 1, least=0)
    groups, top_groups = f.integer("n_group", 8), f.integer("topk_group", 4)
    top = f.integer("num_experts_per_tok", 8)
    if routed % groups or routed // groups < 2:
        raise f.error(
            "n_group", f"it must cut the {routed} n_routed_experts into equal groups of two or more"
        )
    if top_groups > groups:
        raise f.error("topk_group", f"it must be at most n_group, {groups}")
    if top > top_groups * (routed // groups):
        raise f.error(
            "num_experts_per_tok", f"{top_groups} groups hold only {top_groups * (routed // groups)} experts"
        )
    return {
        "moe_intermediate_size": f.integer("moe_intermediate_size"), "first_k_dense_replace": dense,
        "n_routed_experts": routed, "n_shared_experts": shared, "num_experts_per_tok": top,
        "n_group": groups, "topk_group": top_groups, "norm_topk_prob": f.boolean("norm_topk_prob", True),
        "routed_scaling_factor": f.number("routed_scaling_factor", 2.5),
    }  # fmt: skip


def _rope(f: Fields) -> tuple[float, YarnScaling | None]:
    """Theta and scaling: rope_theta + rope_scaling (DeepSeek) or rope_parameters (transformers 5)."""
    f.only("partial_rotary_factor", None, 1)
    theta = f.number("rope_theta", 10000.0)
    old, new = f.table("rope_scaling"), f.table("rope_parameters")
    readings = [(t.number("rope_theta", theta), _scaling(t)) for t in (old, new) if t is not None]
    if len(readings) == 2 and readings[0] != readings[1]:
        raise f.error("rope_parameters", f"it contradicts rope_scaling, {f.data['rope_scaling']!r}; keep one")
    theta, scaling = readings[0] if readings else (theta, None)
    if scaling is not None and theta <= 1:  # YaRN divides by its logarithm
        raise f.error("rope_theta", "with YaRN it must be more than 1")
    return theta, scaling


def _scaling(t: Fields) -> YarnScaling | None:
    for key in t.data:
        if key not in ROPE_KEYS:
            raise t.error(key, f"supported keys: {', '.join(sorted(ROPE_KEYS))}")
    for key in ("rope_type", "type"):  # transformers writes both into what was DeepSeek's
        t.only(key, "default", "yarn")
    kind = t.get("rope_type", t.get("type", "default"))
    if t.get("type", kind) != kind:
        raise t.error("type", f"it contradicts rope_type, {kind!r}")
    t.only("partial_rotary_factor", None, 1)
    if kind == "default":
        return None
    t.only("attention_factor", None)
    t.only("truncate", True)
    mscale = t.number("mscale", 1.0)
    all_dim = t.number("mscale_all_dim", 0.0, zero=True)
    if ("mscale" not in t.data and all_dim != 0) or (mscale != 1 and all_dim == 0):
        # DeepSeek's own code and transformers scale differently then
        raise t.error(
            "mscale", f"with mscale_all_dim {all_dim:g} its meaning is ambiguous; give both or neither"
        )
    factor = t.number("factor")
    if factor < 1:
        raise t.error("factor", "it must be at least 1")
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=t.integer("original_max_position_embeddings"),
        beta_fast=t.number("beta_fast", 32.0),
        beta_slow=t.number("beta_slow", 1.0),
        mscale=mscale,
        mscale_all_dim=all_dim,
    )


def _token_ids(f: Fields, vocab_size: int, default: int | None) -> tuple[int, ...]:
    value = f.get("eos_token_id", default)
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab_size:
            raise f.error("eos_token_id", f"it must be one or a list of token ids below {vocab_size}")
    return ids
