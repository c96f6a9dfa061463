"""Matrices in a few bits to plain ones: for kernels that cannot compute from them, and as the oracle of those
that can."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.stored import INT4, Stored


def widened(stored: Stored, dtype: torch.dtype) -> Tensor:
    """[n, k] in this dtype."""
    if stored.format.name == INT4:
        return _int4(stored).to(dtype)
    raise ValueError(f"{stored.format.name} cannot be widened")


def _int4(stored: Stored) -> Tensor:
    (n, k), scale = stored.shape, stored.scale
    assert scale is not None
    codes = torch.stack((stored.data & 15, stored.data >> 4), 2).view(n, scale.shape[1], -1).float()
    zero = 8 if stored.zero is None else stored.zero[..., None].float()
    return ((codes - zero) * scale[..., None]).view(n, k)
