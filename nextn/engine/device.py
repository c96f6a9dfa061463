"""The torch device of the option --device."""

from __future__ import annotations

import torch


def device_type(name: str) -> str:
    """cpu or cuda, without a check that there is a GPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def engine_device(name: str) -> torch.device:
    """The CPU, or the current GPU. Raises ValueError if there is no GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device(device_type(name))
