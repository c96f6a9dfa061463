"""Qwen3, dense: GQA with a norm of each query and key, no NextN module."""

from __future__ import annotations

from nextn.families import gqa
from nextn.families.config import ModelConfig
from nextn.families.fields import Fields
from nextn.families.parts import basics, dense

NAMES = gqa.NAMES
MTP = gqa.v3_module("Qwen3ForCausalLMNextN", dense=True)


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """f: config.json. generation: generation_config.json, for its end tokens. name: of the architecture."""
    gqa.full_attention_only(f)
    bias = f.boolean("attention_bias", False)
    common = basics(name, f, generation, positions=32768)
    attention = gqa.attention(f, qk_norm=True, qkv_bias=bias, out_bias=bias, head_dim=128)
    return ModelConfig(**common, **dense(common["num_hidden_layers"]), **attention)
