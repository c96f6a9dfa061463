"""Rotary embedding over adjacent pairs (arXiv 2104.09864), in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, P], cos and sin [T, P / 2] f32."""
    pairs = torch.view_as_complex(x.float().contiguous().unflatten(-1, (-1, 2)))
    turned = pairs * torch.complex(cos, sin)[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)
