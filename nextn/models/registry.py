"""Which architectures nextn serves, by the name in config.json. Classes are imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

SUPPORTED: dict[str, dict[str, str]] = {  # by the kernels that compute it
    "DeepseekV3ForCausalLM": {
        "reference": "nextn.models.deepseek_v3:DeepseekV3",
        "triton": "nextn.models.cuda:CudaDeepseekV3",
        "cpu": "nextn.models.native:NativeDeepseekV3",
    },
}
MODEL_TYPES: dict[str, str] = {"deepseek_v3": "DeepseekV3ForCausalLM"}  # for a config without `architectures`


def architecture(config: Mapping[str, Any], source: str = "config.json") -> str:
    """The supported architecture that a config.json names, in `architectures` or else by `model_type`.

    Raises ValueError naming the architecture and those that are supported.
    """
    named = config.get("architectures")
    if named:
        names = named if isinstance(named, list) else [named]
        for name in names:
            if isinstance(name, str) and name in SUPPORTED:
                return name
        found = f"architectures is {names!r}"
    else:
        model_type = config.get("model_type")
        if isinstance(model_type, str) and model_type in MODEL_TYPES:
            return MODEL_TYPES[model_type]
        found = f"it has no architectures, and model_type is {model_type!r}"
    raise ValueError(f"{source}: {found}: not supported; supported are {', '.join(SUPPORTED)}")


def model_class(name: str, kernels: str = "reference") -> Any:
    """The class that implements a supported architecture on these kernels."""
    if name not in SUPPORTED:
        raise ValueError(f"architecture {name!r} is not supported; supported are {', '.join(SUPPORTED)}")
    module, attribute = SUPPORTED[name][kernels].split(":")
    return getattr(importlib.import_module(module), attribute)
