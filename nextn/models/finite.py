"""Finds NaN and infinite weights while they are loaded.

Such a weight affects every token of every request, and nothing in the texts shows it. The check takes a few
percent of the loading time: one pass looks for such values, and only if it finds some, a second one counts
them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nextn.ops.stored import Stored

LARGEST = torch.finfo(torch.bfloat16).max  # larger values become infinite in bf16
E4M3_LARGEST = 448.0
# By GGUF type: the bytes of a block, and at which bytes of it its f16 scales (and offsets) begin.
HALVES = {
    "Q4_0": (18, (0,)), "Q4_1": (20, (0, 2)), "Q5_0": (22, (0,)), "Q5_1": (24, (0, 2)), "Q8_0": (34, (0,)),
    "Q2_K": (84, (80, 82)), "Q3_K": (110, (108,)), "Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)),
    "Q6_K": (210, (208,)),
}  # fmt: skip


def non_finite(tensor: Tensor) -> int:
    """How many values are NaN, infinite, or infinite once they are bf16. e4m3 has NaN only: 0x7F and 0xFF."""
    if not tensor.numel():
        return 0
    if tensor.dtype == torch.float8_e4m3fn:
        raw = tensor.view(torch.uint8)
        # NaN is the largest pattern of each sign. A mask would write a copy first and take 50 times as long.
        if raw.amax() < 0xFF and raw.view(torch.int8).amax() < 0x7F:
            return 0
        return int((raw & 0x7F == 0x7F).sum())
    if tensor.dtype == torch.bfloat16:
        if math.isfinite(tensor.sum().item()):  # a sum with NaN or infinity is never finite
            return 0
    else:
        low, high = torch.aminmax(tensor)
        if float(low) >= -LARGEST and float(high) <= LARGEST:  # false for NaN
            return 0
    return tensor.numel() - int((tensor.float().abs() <= LARGEST).sum())


def non_finite_scales(scale: Tensor) -> int:
    """How many block scales are NaN, infinite, or make the largest e4m3 value infinite."""
    return non_finite(scale * E4M3_LARGEST)


def non_finite_stored(stored: Stored) -> int:
    """How many scales of a matrix in a few bits are NaN or infinite."""
    if stored.scale is not None:
        return non_finite(stored.scale)
    size, places = HALVES[stored.format.name]
    blocks = stored.data.view(-1, size)
    return sum(non_finite(blocks[:, at : at + 2].contiguous().view(torch.float16)) for at in places)
