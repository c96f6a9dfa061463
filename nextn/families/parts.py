"""Reads the keys that the configs of several families share.

Every function raises ValueError, which names file, key, value and the supported values.
"""

from __future__ import annotations

from typing import Any

from nextn.families.config import LinearScaling, Llama3Scaling, Scaling, YarnScaling
from nextn.families.fields import Fields
from nextn.families.quantization import quantization

ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings",
        "attention_factor", "truncate",
    },
}  # fmt: skip


def basics(
    name: str, f: Fields, generation: Fields | None, *,
    positions: int, eps: float = 1e-6, bos: int | None = None, eos: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The fields that every ModelConfig has, with a family's defaults. name: of the architecture."""
    f.only("hidden_act", "silu")
    vocab_size = f.integer("vocab_size")
    ends = token_ids(f, vocab_size, eos)
    if generation is not None:
        ends += token_ids(generation, vocab_size, None)
    begin = f.get("bos_token_id", bos)
    return {
        "architecture": name, "vocab_size": vocab_size, "hidden_size": f.integer("hidden_size"),
        "num_hidden_layers": f.integer("num_hidden_layers"),
        "num_attention_heads": f.integer("num_attention_heads"),
        "intermediate_size": f.integer("intermediate_size"),
        "max_position_embeddings": f.integer("max_position_embeddings", positions),
        "rms_norm_eps": f.number("rms_norm_eps", eps),
        "bos_token_id": None if begin is None else f.integer("bos_token_id", bos, least=0),
        "eos_token_ids": tuple(dict.fromkeys(ends)),
        "num_nextn_predict_layers": f.integer("num_nextn_predict_layers", 0, least=0),
        "tie_word_embeddings": f.boolean("tie_word_embeddings", False),
        "quantization": quantization(f),
    }  # fmt: skip


def dense(layers: int) -> dict[str, Any]:
    """The MoE part of a config without experts."""
    return {
        "moe_intermediate_size": 0, "first_k_dense_replace": layers, "n_routed_experts": 0,
        "n_shared_experts": 0, "num_experts_per_tok": 0, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    }  # fmt: skip


def experts(
    f: Fields, layers: int, *, dense_layers: int, groups: int, top_groups: int, scale: float
) -> dict[str, Any]:
    """The MoE part of the config, for a router like DeepSeek-V3's, with a family's defaults. It is `dense` if
    there are no experts, or if first_k_dense_replace includes every layer."""
    routed = 0 if f.get("n_routed_experts", None) is None else f.integer("n_routed_experts", least=0)
    dense_layers = f.integer("first_k_dense_replace", dense_layers, least=0)
    if routed == 0 or dense_layers >= layers:
        return dense(layers)
    f.only("moe_layer_freq", 1)
    f.only("scoring_func", "sigmoid")
    f.only("topk_method", "noaux_tc")
    shared = 0 if f.get("n_shared_experts", 1) is None else f.integer("n_shared_experts", 1, least=0)
    groups, top_groups = f.integer("n_group", groups), f.integer("topk_group", top_groups)
    top = f.integer("num_experts_per_tok", 8)
    if routed % groups or routed // groups < 2:
        raise f.error(
            "n_group", f"it must divide the {routed} n_routed_experts into equal groups of two or more"
        )
    if top_groups > groups:
        raise f.error("topk_group", f"it must be at most n_group, {groups}")
    if top > top_groups * (routed // groups):
        raise f.error(
            "num_experts_per_tok", f"{top_groups} groups have only {top_groups * (routed // groups)} experts"
        )
    return {
        "moe_intermediate_size": f.integer("moe_intermediate_size"), "first_k_dense_replace": dense_layers,
        "n_routed_experts": routed, "n_shared_experts": shared, "num_experts_per_tok": top,
        "n_group": groups, "topk_group": top_groups, "norm_topk_prob": f.boolean("norm_topk_prob", True),
        "routed_scaling_factor": f.number("routed_scaling_factor", scale),
    }  # fmt: skip


def rope(f: Fields, *kinds: str) -> tuple[float, Scaling | None]:
    """(theta, scaling), from rope_theta and rope_scaling (original configs), or from rope_parameters (written
    by transformers 5). kinds: the kinds of scaling that the family supports; no scaling is always supported.
    The caller reads `partial_rotary_factor`."""
    theta = f.number("rope_theta", 10000.0)
    old, new = f.table("rope_scaling"), f.table("rope_parameters")
    readings = [
        (t.number("rope_theta", theta), _scaling(t, ("default", *kinds))) for t in (old, new) if t is not None
    ]
    if len(readings) == 2 and readings[0] != readings[1]:
        raise f.error("rope_parameters", f"it contradicts rope_scaling, {f.data['rope_scaling']!r}; keep one")
    theta, scaling = readings[0] if readings else (theta, None)
    if isinstance(scaling, YarnScaling) and theta <= 1:  # YaRN divides by its logarithm
        raise f.error("rope_theta", "with YaRN it must be more than 1")
    return theta, scaling


def _scaling(t: Fields, kinds: tuple[str, ...]) -> Scaling | None:
    keys = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}.union(*(ROPE_KEYS[k] for k in kinds))
    for key in t.data:
        if key not in keys:
            raise t.error(key, f"supported keys: {', '.join(sorted(keys))}")
    for key in ("rope_type", "type"):  # configs that transformers saved have both
        t.only(key, *kinds)
    kind = t.get("rope_type", t.get("type", "default"))
    if t.get("type", kind) != kind:
        raise t.error("type", f"it contradicts rope_type, {kind!r}")
    if kind == "default":
        return None
    factor = t.number("factor")
    if factor < 1:
        raise t.error("factor", "it must be at least 1")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "llama3":
        low, high = t.number("low_freq_factor"), t.number("high_freq_factor")
        if high <= low:
            raise t.error("high_freq_factor", f"it must be more than low_freq_factor, {low:g}")
        return Llama3Scaling(factor, low, high, t.integer("original_max_position_embeddings"))
    return _yarn(t, factor)


def _yarn(t: Fields, factor: float) -> YarnScaling:
    t.only("attention_factor", None)
    t.only("truncate", True)
    mscale = t.number("mscale", 1.0)
    all_dim = t.number("mscale_all_dim", 0.0, zero=True)
    if ("mscale" not in t.data and all_dim != 0) or (mscale != 1 and all_dim == 0):
        # In this case DeepSeek's code and transformers scale differently.
        raise t.error(
            "mscale", f"with mscale_all_dim {all_dim:g} its meaning is ambiguous; give both or neither"
        )
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=t.integer("original_max_position_embeddings"),
        beta_fast=t.number("beta_fast", 32.0),
        beta_slow=t.number("beta_slow", 1.0),
        mscale=mscale,
        mscale_all_dim=all_dim,
    )


def token_ids(f: Fields, vocab_size: int, default: int | None) -> tuple[int, ...]:
    """eos_token_id, which is an id or a list of ids."""
    value = f.get("eos_token_id", default)
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab_size:
            raise f.error("eos_token_id", f"it must be a token id below {vocab_size}, or a list of them")
    return ids
