"""GLM-4.5, 4.6 and 4.7: GQA with half of each head rotated, DeepSeek-V3's experts and NextN module.

vLLM sets the module's embedding to 0 at position 0. transformers does not, and neither does nextn.
"""

from __future__ import annotations

from nextn.families import gqa
from nextn.families.config import ModelConfig
from nextn.families.fields import Fields
from nextn.families.parts import basics, experts

NAMES = gqa.NAMES
MTP = gqa.v3_module("Glm4MoeForCausalLMNextN", "Glm4MoeMTPModel", dense=False)


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """f: config.json. generation: generation_config.json, for its end tokens. name: of the architecture."""
    common = basics(name, f, generation, positions=131072, eps=1e-5)
    moe = experts(f, common["num_hidden_layers"], dense_layers=1, groups=1, top_groups=1, scale=1.0)
    attention = gqa.attention(
        f,
        qk_norm=f.boolean("use_qk_norm", False),
        qkv_bias=f.boolean("attention_bias", False),
        out_bias=False,
        rotary=0.5,
    )
    return ModelConfig(**common, **moe, **attention)
