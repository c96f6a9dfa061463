"""Prepares grouped-query attention: writes keys and values to the cache and returns the queries. A program
processes one head of one row, in f32.

Shapes: T rows, H heads, G key-value heads, D width of a head, P rotated elements, the last ones of a head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.triton.early import early, let_next_start, wait


@triton.jit
def _write_kv(
    qkv, bias, q_norm, k_norm, cos, sin, slots, cache, query, row_step, cache_row, heads, groups, nope, half,
    eps, scale, BIAS: tl.constexpr, NORM: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """A row of qkv has `heads` queries, `groups` keys and `groups` values. A cache entry has [value | key]
    for each of the groups."""
    wait(PDL)
    let_next_start(PDL)
    row, head, width = tl.program_id(0), tl.program_id(1), nope + 2 * half
    x, b = qkv + row * row_step + head * width, bias + head * width
    entry = cache + tl.load(slots + row).to(tl.int64) * cache_row
    if head >= heads + groups:
        d = tl.arange(0, D)
        value = tl.load(x + d, mask=d < width, other=0.0).to(tl.float32)
        if BIAS:
            value += tl.load(b + d, mask=d < width, other=0.0).to(tl.float32)
        value_to = entry + (head - heads - groups) * 2 * width + d
        tl.store(value_to, value.to(cache.dtype.element_ty), mask=d < width)
    else:
        n, i = tl.arange(0, N), tl.arange(0, HALF)
        first, second = nope + 2 * i, nope + 2 * i + 1  # the elements of the rotated pairs
        plain = tl.load(x + n, mask=n < nope, other=0.0).to(tl.float32)
        even = tl.load(x + first, mask=i < half, other=0.0).to(tl.float32)
        odd = tl.load(x + second, mask=i < half, other=0.0).to(tl.float32)
        if BIAS:
            plain += tl.load(b + n, mask=n < nope, other=0.0).to(tl.float32)
            even += tl.load(b + first, mask=i < half, other=0.0).to(tl.float32)
            odd += tl.load(b + second, mask=i < half, other=0.0).to(tl.float32)
        if NORM:
            weight = q_norm if head < heads else k_norm
            squares = tl.sum(plain * plain, axis=0) + tl.sum(even * even, axis=0) + tl.sum(odd * odd, axis=0)
            shrink = 1.0 / tl.sqrt(squares / width + eps)
            plain = plain * shrink * tl.load(weight + n, mask=n < nope, other=0.0).to(tl.float32)
            even = even * shrink * tl.load(weight + first, mask=i < half, other=0.0).to(tl.float32)
            odd = odd * shrink * tl.load(weight + second, mask=i < half, other=0.0).to(tl.float32)
        c = tl.load(cos + row * half + i, mask=i < half, other=0.0)
        s = tl.load(sin + row * half + i, mask=i < half, other=0.0)
        factor = tl.where(head < heads, scale, 1.0)
        to = entry + (head - heads) * 2 * width + width
        if head < heads:
            to = query + (row * heads + head).to(tl.int64) * width
        dtype = cache.dtype.element_ty
        tl.store(to + n, (plain * factor).to(dtype), mask=n < nope)
        tl.store(to + first, ((even * c - odd * s) * factor).to(dtype), mask=i < half)
        tl.store(to + second, ((even * s + odd * c) * factor).to(dtype), mask=i < half)


def write_kv(
    cache: Tensor, slots: Tensor, qkv: Tensor, bias: Tensor | None, q_norm: Tensor | None,
    k_norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor, scale: float,
) -> Tensor:  # fmt: skip
    """cache [slots, G, 2 * D], qkv [T, (H + 2 * G) * D], cos and sin [T, P / 2] f32 -> queries [T, H, D]."""
    (_, groups, both), rows, half = cache.shape, len(qkv), cos.shape[1]
    width = both // 2
    heads = qkv.shape[1] // width - 2 * groups
    assert qkv.stride(1) == 1
    assert qkv.dtype == cache.dtype
    assert cache.stride()[1:] == (both, 1)
    query = torch.empty(rows, heads, width, dtype=qkv.dtype, device=qkv.device)
    nope = width - 2 * half
    norms = (qkv, qkv) if q_norm is None or k_norm is None else (q_norm, k_norm)
    _write_kv[rows, heads + 2 * groups](
        qkv, qkv if bias is None else bias, *norms, cos, sin, slots, cache, query, qkv.stride(0),
        cache.stride(0), heads, groups, nope, half, eps, scale, BIAS=bias is not None,
        NORM=q_norm is not None, N=triton.next_power_of_2(max(1, nope)), HALF=triton.next_power_of_2(half),
        D=triton.next_power_of_2(width), num_warps=1, enable_fp_fusion=False, **early(qkv.device),
    )  # fmt: skip
    return query
