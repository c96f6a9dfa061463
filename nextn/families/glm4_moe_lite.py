"""GLM-4.7-Flash: DeepSeek-V3's architecture and tensor names, without expert groups. The embedding in its
NextN module is 0 at position 0.

Keys of config.json and refused values are the same as for DeepSeek-V3. Absent keys have the defaults of
transformers' Glm4MoeLiteConfig. Sizes are required, as for V3. The target computes the same as transformers'
Glm4MoeLiteForCausalLM, the module the same as vLLM's Glm4MoeLiteMTP.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nextn.families import deepseek_v3
from nextn.families.config import ModelConfig
from nextn.families.fields import Fields

NAMES = deepseek_v3.NAMES
# DeepSeek-V3's names are included because its exporters write them for every model.
MTP = replace(
    deepseek_v3.MTP,
    masks_first=True,
    exported=("Glm4MoeLiteForCausalLMNextN", *deepseek_v3.MTP.exported),
)

DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4,
    "routed_scaling_factor": 1.8, "max_position_embeddings": 202752, "rms_norm_eps": 1e-5,
}  # fmt: skip


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """Same as `nextn.families.deepseek_v3.parse`, with this family's defaults."""
    data = {**DEFAULTS, **f.data}
    if f.get("mlp_layer_types", None) is not None:
        data["first_k_dense_replace"] = _dense_layers(f)
    return deepseek_v3.parse(name, Fields(data, f.source), generation)


def _dense_layers(f: Fields) -> int:
    """Number of dense layers, from transformers 5's list with the kind of every layer. They must be the first
    layers; raises ValueError otherwise."""
    kinds, layers = f.get("mlp_layer_types"), f.integer("num_hidden_layers")
    dense = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise f.error(
            "mlp_layer_types",
            f"it must be 'dense' for the first layers and 'sparse' for the rest of {layers}",
        )
    if f.get("first_k_dense_replace", dense) != dense:
        raise f.error("first_k_dense_replace", f"it contradicts mlp_layer_types, with {dense} dense layers")
    return dense
