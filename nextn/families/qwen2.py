"""Qwen2 and Qwen2.5, dense: GQA with biases of queries, keys and values; no NextN module."""

from __future__ import annotations

from nextn.families import gqa
from nextn.families.config import ModelConfig
from nextn.families.fields import Fields
from nextn.families.parts import basics, dense

NAMES = gqa.NAMES
MTP = gqa.v3_module("Qwen2ForCausalLMNextN", dense=True)


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """f: config.json. generation: generation_config.json, for its end tokens. name: of the architecture."""
    gqa.full_attention_only(f)
    f.only("attention_bias", True)
    common = basics(name, f, generation, positions=32768)
    attention = gqa.attention(f, qk_norm=False, qkv_bias=True, out_bias=False)
    return ModelConfig(**common, **dense(common["num_hidden_layers"]), **attention)
