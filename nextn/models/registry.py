"""The classes that compute an architecture, by its kernels. They are imported when asked for."""

from __future__ import annotations

import importlib
from typing import Any

GQA = {
    "reference": "nextn.models.deepseek_v3:DeepseekV3",
    "triton": "nextn.models.cuda:CudaDeepseekV3",
    "cpu": "nextn.models.native:NativeDeepseekV3",
}

CLASSES: dict[str, dict[str, str]] = {
    "DeepseekV3ForCausalLM": {
        "reference": "nextn.models.deepseek_v3:DeepseekV3",
        "triton": "nextn.models.cuda:CudaDeepseekV3",
        "cpu": "nextn.models.native:NativeDeepseekV3",
    },
    "Glm4MoeForCausalLM": GQA,
    "LlamaForCausalLM": GQA,
    "MiMoForCausalLM": GQA,
    "Qwen2ForCausalLM": GQA,
    "Qwen3ForCausalLM": GQA,
}


def model_class(name: str, kernels: str = "reference") -> Any:
    """The class that implements a supported architecture on these kernels."""
    module, attribute = CLASSES[name][kernels].split(":")
    return getattr(importlib.import_module(module), attribute)
