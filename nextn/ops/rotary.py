"""Rotary embedding over adjacent pairs (arXiv 2104.09864), in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, P], cos and sin [T, P / 2] f32 -> x rotated. A head's bits do not depend on the number of
    heads. With complex products they would: the vector loop and the scalar tail differ in the last bit."""
    even, odd, c, s = x[..., 0::2].float(), x[..., 1::2].float(), cos[:, None], sin[:, None]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2).to(x.dtype)
