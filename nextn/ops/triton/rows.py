"""What is done row by row: a program is one row, its arithmetic f32.

Shapes: T rows, C their width, R kv_lora_rank, P rotated elements.
"""

from __future__ import annotations

from collections.abc import Sequence

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
def _add_norm(x, first, second, weight, out, width, eps, ADDED: tl.constexpr, C: tl.constexpr):
    """x [T, width] f32 <- x + first + second, as many of them as ADDED says; out <- its norm."""
    row, c = tl.program_id(0), tl.arange(0, C)
    ok = c < width
    at = row * width + c
    v = tl.load(x + at, mask=ok, other=0.0)
    if ADDED >= 1:
        v = v + tl.load(first + at, mask=ok, other=0.0)
    if ADDED >= 2:
        v = v + tl.load(second + at, mask=ok, other=0.0)
    if ADDED >= 1:
        tl.store(x + at, v, mask=ok)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, axis=0) / width + eps)
    v = v * scale * tl.load(weight + c, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + at, v.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _write_latent(
    latent, weight, cos, sin, slots, cache, row_step, cache_row, rank, half, eps, R: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """A row of latent [T, rank + 2 * half], first part normed, pairs of the other rotated, to its slot."""
    row, r, i = tl.program_id(0), tl.arange(0, R), tl.arange(0, HALF)
    x = latent + row * row_step
    to = cache + tl.load(slots + row).to(tl.int64) * cache_row
    v = tl.load(x + r, mask=r < rank, other=0.0).to(tl.float32)
    v = v * (1.0 / tl.sqrt(tl.sum(v * v, axis=0) / rank + eps))
    v = v * tl.load(weight + r, mask=r < rank, other=0.0).to(tl.float32)
    tl.store(to + r, v.to(cache.dtype.element_ty), mask=r < rank)
    c = tl.load(cos + row * half + i, mask=i < half, other=0.0)
    s = tl.load(sin + row * half + i, mask=i < half, other=0.0)
    even = tl.load(x + rank + 2 * i, mask=i < half, other=0.0).to(tl.float32)
    odd = tl.load(x + rank + 2 * i + 1, mask=i < half, other=0.0).to(tl.float32)
    tl.store(to + rank + 2 * i, (even * c - odd * s).to(cache.dtype.element_ty), mask=i < half)
    tl.store(to + rank + 2 * i + 1, (even * s + odd * c).to(cache.dtype.element_ty), mask=i < half)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, C] -> [T, C] of the weight's dtype."""
    assert x.stride(1) == 1
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    warps = min(8, max(1, block // 256))
    _rms_norm[(x.shape[0],)](x, weight, out, x.stride(0), width, eps, C=block, num_warps=warps)
    return out


def add_norm(x: Tensor, added: Sequence[Tensor], weight: Tensor, eps: float) -> Tensor:
    """x [T, C] f32 <- x plus each of `added` [T, C] f32 in turn. Returns its norm, of the weight's dtype."""
    assert len(added) <= 2
    assert all(t.is_contiguous() and t.dtype == torch.float32 and t.shape == x.shape for t in (x, *added))
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    first, second = (*added, x, x)[:2]
    _add_norm[(x.shape[0],)](
        x, first, second, weight, out, width, eps, ADDED=len(added), C=block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out


def write_latent(
    cache: Tensor, slots: Tensor, latent: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor
) -> None:
    """cache [slots, R + P] <- latent [T, R + P], weight [R], cos and sin [T, P / 2] f32."""
    assert cache.stride(1) == latent.stride(1) == 1
    (rows, width), rank = latent.shape, len(weight)
    half = (width - rank) // 2
    _write_latent[(rows,)](
        latent, weight, cos, sin, slots, cache, latent.stride(0), cache.stride(0), rank, half, eps,
        R=triton.next_power_of_2(rank), HALF=triton.next_power_of_2(half), num_warps=1,
    )  # fmt: skip
