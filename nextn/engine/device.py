"""--device, as torch calls it."""

from __future__ import annotations

import torch


def device_type(name: str) -> str:
    """cpu or cuda, whether there is a GPU or not."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def engine_device(name: str) -> torch.device:
    """Of GPUs, the current one. Raises ValueError where there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device(device_type(name))
