"""The families that nextn serves, by the architecture's name in config.json. Each has a file in this
folder."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

FAMILIES: dict[str, str] = {
    "DeepseekV3ForCausalLM": "nextn.families.deepseek_v3",
    "DeepseekV2ForCausalLM": "nextn.families.deepseek_v2",
    "Glm4MoeForCausalLM": "nextn.families.glm4_moe",
    "Glm4MoeLiteForCausalLM": "nextn.families.glm4_moe_lite",
    "JoyAILLMFlashForCausalLM": "nextn.families.joyai_llm_flash",
    "LlamaForCausalLM": "nextn.families.llama",
    "MiMoForCausalLM": "nextn.families.mimo",
    "Qwen2ForCausalLM": "nextn.families.qwen2",
    "Qwen3ForCausalLM": "nextn.families.qwen3",
}
MODEL_TYPES: dict[str, str] = {  # for a config without `architectures`
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "joyai_llm_flash": "JoyAILLMFlashForCausalLM",
    "llama": "LlamaForCausalLM",
    "mimo": "MiMoForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
TYPE_DECIDES = ("joyai_llm_flash",)  # model types with another family's name in `architectures`


def architecture(config: Mapping[str, Any], source: str = "config.json") -> str:
    """The supported architecture of a config.json, from `architectures` or, if that is absent, `model_type`.

    Raises ValueError, which names the architecture and the supported ones.
    """
    named, model_type = config.get("architectures"), config.get("model_type")
    if named:
        names = named if isinstance(named, list) else [named]
        for name in names:
            if isinstance(name, str) and name in FAMILIES:
                return MODEL_TYPES[model_type] if model_type in TYPE_DECIDES else name
        if any(name in family_of(family).MTP.exported for name in names for family in FAMILIES):
            raise ValueError(
                f"{source}: architectures is {names!r}: this folder holds an MTP layer without its model; "
                "give it with --speculative-draft-model-path, and the model with --model-path"
            )
        found = f"architectures is {names!r}"
    else:
        if isinstance(model_type, str) and model_type in MODEL_TYPES:
            return MODEL_TYPES[model_type]
        found = f"it has no architectures, and model_type is {model_type!r}"
    raise ValueError(f"{source}: {found}: not supported; supported are {', '.join(FAMILIES)}")


def family_of(name: str) -> Any:
    """The Python module of a supported architecture's family: `parse` makes a ModelConfig, `NAMES` are its
    TensorNames, `MTP` is its MTPSpec."""
    return importlib.import_module(FAMILIES[name])
