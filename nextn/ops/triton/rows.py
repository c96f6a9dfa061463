"""What is done row by row: a program is one row, its arithmetic f32.

Shapes: T rows, C their width, H heads, P rotated elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, weight, out, x_row, width, eps, C: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, C)
    ok = c < width
    v = tl.load(x + row * x_row + c, mask=ok, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, axis=0) / width + eps)
    v = v * scale * tl.load(weight + c, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * width + c, v.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _rotate(x, cos, sin, out, heads, x_row, x_head, half, H: tl.constexpr, HALF: tl.constexpr):
    row, head, i = tl.program_id(0), tl.arange(0, H)[:, None], tl.arange(0, HALF)[None, :]
    ok = (head < heads) & (i < half)
    c = tl.load(cos + row * half + i, mask=i < half, other=0.0)
    s = tl.load(sin + row * half + i, mask=i < half, other=0.0)
    even = tl.load(x + row * x_row + head * x_head + 2 * i, mask=ok, other=0.0).to(tl.float32)
    odd = tl.load(x + row * x_row + head * x_head + 2 * i + 1, mask=ok, other=0.0).to(tl.float32)
    to = out + (row * heads + head) * 2 * half + 2 * i
    tl.store(to, (even * c - odd * s).to(out.dtype.element_ty), mask=ok)
    tl.store(to + 1, (even * s + odd * c).to(out.dtype.element_ty), mask=ok)


@triton.jit
def _write_cache(cache, slots, entries, cache_row, entries_row, width, D: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, D)
    slot = tl.load(slots + row).to(tl.int64)
    entry = tl.load(entries + row * entries_row + d, mask=d < width)
    tl.store(cache + slot * cache_row + d, entry.to(cache.dtype.element_ty), mask=d < width)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, C] -> [T, C] of the weight's dtype."""
    assert x.stride(1) == 1
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    warps = min(8, max(1, block // 256))
    _rms_norm[(x.shape[0],)](x, weight, out, x.stride(0), width, eps, C=block, num_warps=warps)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, P], cos and sin [T, P / 2] f32 -> [T, H, P]."""
    assert x.stride(2) == 1
    rows, heads, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rotate[(rows,)](
        x, cos, sin, out, heads, x.stride(0), x.stride(1), width // 2,
        H=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(width // 2), num_warps=1,
    )  # fmt: skip
    return out


def write_cache(cache: Tensor, slots: Tensor, entries: Tensor) -> None:
    """cache [slots, D] <- entries [T, D]."""
    assert cache.stride(1) == entries.stride(1) == 1
    rows, width = entries.shape
    _write_cache[(rows,)](
        cache, slots, entries, cache.stride(0), entries.stride(0), width, D=triton.next_power_of_2(width),
        num_warps=1,
    )  # fmt: skip
