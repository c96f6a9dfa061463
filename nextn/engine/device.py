"""--device, as torch calls it."""

from __future__ import annotations

import torch


def engine_device(name: str) -> torch.device:
    """Of GPUs, the current one. Raises ValueError where there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
