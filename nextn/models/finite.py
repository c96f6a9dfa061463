"""Finds NaN and infinite weights while they are loaded.

A weight that is no number spreads to every token of every request, and the texts that come out say nothing of
it. Looking at every value takes a few percent of a load: one pass that reads, and only where it finds
something a second one that counts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.bfloat16).max  # larger values become infinite in bf16
E4M3_LARGEST = 448.0


def non_finite(tensor: Tensor) -> int:
    """How many values are NaN, infinite, or infinite once they are bf16. e4m3 has NaN only: 0x7F and 0xFF."""
    if not tensor.numel():
        return 0
    if tensor.dtype == torch.float8_e4m3fn:
        raw = tensor.view(torch.uint8)
        # The largest patterns of their signs; a mask would write a copy first and take 50 times as long.
        if raw.amax() < 0xFF and raw.view(torch.int8).amax() < 0x7F:
            return 0
        return int((raw & 0x7F == 0x7F).sum())
    if tensor.dtype == torch.bfloat16:
        if math.isfinite(tensor.sum().item()):  # neither NaN nor infinity leaves a sum again
            return 0
    else:
        low, high = torch.aminmax(tensor)
        if float(low) >= -LARGEST and float(high) <= LARGEST:  # false for NaN
            return 0
    return tensor.numel() - int((tensor.float().abs() <= LARGEST).sum())


def non_finite_scales(scale: Tensor) -> int:
    """How many block scales are NaN, infinite, or make the largest e4m3 value infinite."""
    return non_finite(scale * E4M3_LARGEST)
