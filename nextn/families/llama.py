"""Llama 2 to 3.3 and models with its architecture's name (SmolLM2, Yi, ...): GQA, dense, no NextN module."""

from __future__ import annotations

from nextn.families import gqa
from nextn.families.config import ModelConfig
from nextn.families.fields import Fields
from nextn.families.parts import basics, dense

NAMES = gqa.NAMES
MTP = gqa.v3_module("LlamaForCausalLMNextN", dense=True)


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """f: config.json. generation: generation_config.json, for its end tokens. name: of the architecture."""
    f.only("mlp_bias", False)
    f.only("sliding_window", None)
    f.only("rope_interleaved", False)  # SmolLM2's files have the key
    bias = f.boolean("attention_bias", False)
    common = basics(name, f, generation, positions=2048, bos=1, eos=2)
    attention = gqa.attention(f, qk_norm=False, qkv_bias=bias, out_bias=bias, kv_heads=None)
    return ModelConfig(**common, **dense(common["num_hidden_layers"]), **attention)
