"""Matrices to 4 bits: what --quantization w4a16 makes of weights as they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.stored import INT4, Format, Stored


def quantize_int4(weight: Tensor, group: int, zeros: bool) -> Stored:
    """weight [n, k], k a multiple of group -> its nearest codes. zeros: each group has a zero point, so that
    the codes cover what lies between its least and its largest weight; else they are symmetric around 8."""
    n, k = weight.shape
    assert k % group == 0, (weight.shape, group)
    groups = weight.float().view(n, k // group, group)
    if zeros:
        low, high = groups.amin(2).clamp_(max=0), groups.amax(2).clamp_(min=0)
        scale = (high - low).clamp_(min=1e-12) / 15
        zero = torch.round(-low / scale).clamp_(0, 15)
    else:
        scale = groups.abs().amax(2).clamp_(min=1e-12) / 8
        zero = torch.full_like(scale, 8)
    codes = torch.round(groups / scale[..., None] + zero[..., None]).clamp_(0, 15).to(torch.uint8).view(n, k)
    data = codes[:, 0::2] | codes[:, 1::2] << 4
    return Stored(Format(INT4, group, zeros), (n, k), data, scale, zero.to(torch.uint8) if zeros else None)
