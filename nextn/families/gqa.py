"""The common part of families with grouped-query attention: names of tensors, a NextN module with
DeepSeek-V3's names, and functions that read config.json. Each family's file has the differences.

Absent keys have transformers' defaults, except sizes, which are required.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nextn.families import deepseek_v3
from nextn.families.config import GqaAttention
from nextn.families.fields import REQUIRED, Fields
from nextn.families.mtp import MTPSpec
from nextn.families.parts import rope

NAMES = replace(
    deepseek_v3.NAMES,
    **dict.fromkeys(("q_down", "q_up", "kv_down", "kv_norm", "kv_up"), ""),  # only in latent attention
    k_proj="self_attn.k_proj.weight",
    v_proj="self_attn.v_proj.weight",
    q_bias="self_attn.q_proj.bias",
    k_bias="self_attn.k_proj.bias",
    v_bias="self_attn.v_proj.bias",
    q_norm="self_attn.q_norm.weight",
    k_norm="self_attn.k_norm.weight",
    out_bias="self_attn.o_proj.bias",
)


def v3_module(exported: str, *more: str, dense: bool) -> MTPSpec:
    """A NextN module with DeepSeek-V3's names. exported, more: `architectures` of folders with only modules.
    A family without modules in its checkpoints can still use one, by --speculative-draft-model-path."""
    return replace(deepseek_v3.MTP, dense=dense, exported=(exported, *more))


def attention(
    f: Fields, *, qk_norm: bool, qkv_bias: bool, out_bias: bool,
    rotary: float = 1.0, head_dim: int = 0, kv_heads: Any = REQUIRED,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a ModelConfig for attention and rotary embedding.

    Defaults of keys: rotary: of partial_rotary_factor. head_dim: of head_dim; 0: hidden_size divided by the
    number of heads. kv_heads: of num_key_value_heads; None: the number of heads."""
    heads = f.integer("num_attention_heads")
    given = f.get("num_key_value_heads", kv_heads)
    kv_heads = heads if given is None else f.integer("num_key_value_heads")
    if heads % kv_heads:
        raise f.error("num_key_value_heads", f"it must divide num_attention_heads, {heads}")
    if f.get("head_dim", None) is not None:
        head_dim = f.integer("head_dim")
    elif not head_dim:
        hidden = f.integer("hidden_size")
        if hidden % heads:
            raise f.error("hidden_size", f"without head_dim, num_attention_heads, {heads}, must divide it")
        head_dim = hidden // heads
    theta, scaling = rope(f, "linear", "llama3", "yarn")
    rotary_dim = int(head_dim * _partial(f, rotary))
    if rotary_dim < 2 or rotary_dim % 2:
        raise f.error(
            "head_dim", f"{rotary_dim} of its {head_dim} elements would be rotated; it must be even"
        )
    if getattr(scaling, "mscale_all_dim", 0):
        raise f.error("rope_scaling", "mscale_all_dim is not supported with this attention; remove it")
    return {
        "q_lora_rank": None, "kv_lora_rank": 0, "qk_nope_head_dim": head_dim - rotary_dim,
        "qk_rope_head_dim": rotary_dim, "v_head_dim": head_dim, "rope_theta": theta, "rope_scaling": scaling,
        "gqa": GqaAttention(kv_heads, head_dim, rotary_dim, qk_norm, qkv_bias, out_bias),
    }  # fmt: skip


def full_attention_only(f: Fields) -> None:
    """Raises ValueError if a layer would attend to a sliding window in transformers' Qwen classes."""
    layers = f.integer("num_hidden_layers")
    used = f.boolean("use_sliding_window", False) and f.get("sliding_window", 4096) is not None
    if used and f.integer("max_window_layers", 28, least=0) < layers:
        raise f.error("use_sliding_window", "nextn computes full attention in every layer; supported: False")
    kinds = f.get("layer_types", None)
    if kinds is not None and (not isinstance(kinds, list) or set(kinds) - {"full_attention"}):
        raise f.error("layer_types", 'supported: null, or "full_attention" for every layer')


def _partial(f: Fields, default: float) -> float:
    """partial_rotary_factor, which is beside rope_theta or, if transformers 5 wrote the file, in
    rope_parameters."""
    table = f.table("rope_parameters") or f.table("rope_scaling")
    inner = None if table is None else table.get("partial_rotary_factor", None)
    outer = f.get("partial_rotary_factor", None)
    if inner is not None and outer is not None and inner != outer:
        raise f.error("partial_rotary_factor", f"it contradicts that of rope_parameters, {inner!r}")
    if inner is None and outer is None:
        return default
    holder = f if table is None or inner is None else table
    found = holder.number("partial_rotary_factor")
    if found > 1:
        raise f.error("partial_rotary_factor", "it must be at most 1")
    return found
