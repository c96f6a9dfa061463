"""The classes that compute an architecture, by its kernels. They are imported when asked for."""

from __future__ import annotations

import importlib
from typing import Any

from nextn.families.registry import FAMILIES

DECODER = {
    "reference": "nextn.models.torch_model:TorchModel",
    "triton": "nextn.models.cuda:CudaModel",
    "cpu": "nextn.models.native:NativeModel",
}
CLASSES: dict[str, dict[str, str]] = dict.fromkeys(FAMILIES, DECODER)


def model_class(name: str, kernels: str = "reference") -> Any:
    """The class that implements a supported architecture on these kernels."""
    module, attribute = CLASSES[name][kernels].split(":")
    return getattr(importlib.import_module(module), attribute)
