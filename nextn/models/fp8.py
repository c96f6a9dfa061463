"""FP8 block weights, as DeepSeek-V3 is published: e4m3 values, one float32 scale for each block.

    weight[i, j] = float32(stored[i, j]) * scale_inv[i // rows, j // columns]

The last block of a row or column may be partial. ("inv": the inverse of what the weight was divided by.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.models.memory import fresh

SCALE_SUFFIX = "_scale_inv"  # of the weight's own name


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Shape of the scales of a weight [N, K]: one per block, partial ones counted.

    >>> scale_shape((576, 7168), (128, 128))
    (5, 56)
    """
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def dequantize(stored: Tensor, scale_inv: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """stored [N, K] e4m3, scale_inv `scale_shape` f32 -> [N, K] `dtype`. Multiplied in f32, rounded once.

    Goes by rows of blocks, so that the f32 copy is a small part of the weight.
    """
    rows, columns = block
    n, k = stored.shape
    assert scale_inv.shape == scale_shape((n, k), block), (stored.shape, scale_inv.shape, block)
    out = fresh((n, k), dtype)
    for b, start in enumerate(range(0, n, rows)):
        scale = scale_inv[b].repeat_interleave(columns)[:k]
        out[start : start + rows] = stored[start : start + rows].float().mul_(scale)
    return out
