"""Norms and MLA's cache entries: a program processes one row, in f32.

All kernels compute the same bits of a norm: multiplications and additions are fused in none of them
(`enable_fp_fusion=False`), or in all of them (`tl.fma`).

Shapes: T rows, C their width, R kv_lora_rank, P rotated elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import Addend, Mixture
from nextn.ops.triton.early import early, let_next_start, wait


@triton.jit
def store_norm(v, weight, out, width, eps, C: tl.constexpr):
    """out [width] <- the norm of v [C] f32, which is 0 from `width` on."""
    c = tl.arange(0, C)
    ok = c < width
    scale = 1.0 / tl.sqrt(tl.sum(v * v, axis=0) / width + eps)
    v = v * scale * tl.load(weight + c, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + c, v.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _norm(x, weight, out, width, eps, C: tl.constexpr):
    """out <- the norm of one row."""
    c = tl.arange(0, C)
    v = tl.load(x + c, mask=c < width, other=0.0).to(tl.float32)
    store_norm(v, weight, out, width, eps, C)


@triton.jit
def _rms_norm(x, weight, out, x_row, width, eps, C: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    let_next_start(PDL)
    row = tl.program_id(0)
    _norm(x + row * x_row, weight, out + row * width, width, eps, C)


@triton.jit
def mixed(results, weights, row, c, ok, width, top_k: tl.constexpr, C: tl.constexpr):
    """Columns c of the sum of a row's expert results times their weights, in the order of its ids; 0 if not
    ok. The fused multiply-adds are explicit, so that all kernels compute the same bits."""
    acc = tl.zeros((C,), dtype=tl.float32)
    for k in tl.static_range(top_k):
        pair = row * top_k + k
        acc = tl.fma(tl.load(results + pair * width + c, mask=ok, other=0.0), tl.load(weights + pair), acc)
    return tl.where(ok, acc, 0.0)  # a padding row's weight may be NaN


@triton.jit
def _add_norm(
    x, first, second, results, weights, weight, out, width, routed, eps, ADDED: tl.constexpr,
    TOP_K: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x [T, width] f32 <- x + first + second (ADDED of these two) + the mixture of the TOP_K expert results
    of each of the first `routed` rows; out <- its norm."""
    wait(PDL)
    let_next_start(PDL)
    row, c = tl.program_id(0), tl.arange(0, C)
    ok = c < width
    at = row * width + c
    v = tl.load(x + at, mask=ok, other=0.0)
    if ADDED >= 1:
        v = v + tl.load(first + at, mask=ok, other=0.0)
    if ADDED >= 2:
        v = v + tl.load(second + at, mask=ok, other=0.0)
    if TOP_K >= 1:
        v = v + mixed(results, weights, row, c, c < tl.where(row < routed, width, 0), width, TOP_K, C)
    if ADDED + TOP_K >= 1:
        tl.store(x + at, v, mask=ok)
    store_norm(v, weight, out + row * width, width, eps, C)


@triton.jit
def _write_latent(
    latent, weight, cos, sin, slots, cache, query, query_weight, normed, row_step, cache_row, query_row,
    query_width, rank, half, eps, R: tl.constexpr, HALF: tl.constexpr, QUERY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Writes each row of latent [T, rank + 2 * half] to its slot: the first part normed, the pairs of the
    rest rotated. QUERY: in separate programs, normed [T, query_width] <- the norm of query."""
    wait(PDL)
    let_next_start(PDL)
    row, i = tl.program_id(0), tl.arange(0, HALF)
    if tl.program_id(1) == 0:
        x = latent + row * row_step
        to = cache + tl.load(slots + row).to(tl.int64) * cache_row
        _norm(x, weight, to, rank, eps, R)
        c = tl.load(cos + row * half + i, mask=i < half, other=0.0)
        s = tl.load(sin + row * half + i, mask=i < half, other=0.0)
        even = tl.load(x + rank + 2 * i, mask=i < half, other=0.0).to(tl.float32)
        odd = tl.load(x + rank + 2 * i + 1, mask=i < half, other=0.0).to(tl.float32)
        tl.store(to + rank + 2 * i, (even * c - odd * s).to(cache.dtype.element_ty), mask=i < half)
        tl.store(to + rank + 2 * i + 1, (even * s + odd * c).to(cache.dtype.element_ty), mask=i < half)
    elif QUERY > 0:
        _norm(query + row * query_row, query_weight, normed + row * query_width, query_width, eps, QUERY)


def row_warps(width: int) -> int:
    """Number of warps of a program that processes `width` elements."""
    return min(8, max(1, width // 256))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, C] -> [T, C] of the weight's dtype."""
    assert x.stride(1) == 1
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    _rms_norm[(x.shape[0],)](
        x, weight, out, x.stride(0), width, eps, C=block, num_warps=row_warps(block), enable_fp_fusion=False,
        **early(x.device),
    )  # fmt: skip
    return out


def add_norm(x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float) -> Tensor:
    """x [T, C] f32 <- x plus each of `added` [T, C] f32 in turn. Returns its norm in the weight's dtype."""
    assert len(added) <= 2
    plain = [one for one in added if isinstance(one, Tensor)]
    mixtures = [one for one in added if isinstance(one, Mixture)]
    assert not mixtures or mixtures[0] is added[-1]
    assert all(t.is_contiguous() and t.dtype == torch.float32 and t.shape == x.shape for t in (x, *plain))
    results, weights = mixtures[0] if mixtures else (x[:0, None], x)
    routed, top_k, _ = results.shape
    assert results.is_contiguous()
    assert weights.is_contiguous()
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    first, second = (*plain, x, x)[:2]
    _add_norm[(x.shape[0],)](
        x, first, second, results, weights, weight, out, width, routed, eps, ADDED=len(plain),
        TOP_K=top_k if mixtures else 0, C=block, num_warps=row_warps(block),
        enable_fp_fusion=False, **early(x.device),
    )  # fmt: skip
    return out


def write_latent(
    cache: Tensor, slots: Tensor, latent: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor
) -> None:
    """cache [slots, R + P] <- latent [T, R + P], weight [R], cos and sin [T, P / 2] f32."""
    _write(cache, slots, latent, weight, eps, cos, sin)


def norm_latents(
    cache: Tensor, slots: Tensor, latent: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor,
    query: Tensor, query_weight: Tensor,
) -> Tensor:  # fmt: skip
    """`write_latent`, and query [T, Q], query_weight [Q] -> the norm [T, Q], in one launch."""
    assert query.stride(1) == 1
    normed = torch.empty(query.shape, dtype=query_weight.dtype, device=query.device)
    _write(cache, slots, latent, weight, eps, cos, sin, (query, query_weight, normed))
    return normed


def _write(
    cache: Tensor, slots: Tensor, latent: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor,
    queries: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    assert cache.stride(1) == latent.stride(1) == 1
    (rows, width), rank = latent.shape, len(weight)
    half = (width - rank) // 2
    query, query_weight, normed = queries or (latent, weight, latent)
    query_width = query.shape[1] if queries else 0
    _write_latent[rows, 2 if queries else 1](
        latent, weight, cos, sin, slots, cache, query, query_weight, normed, latent.stride(0),
        cache.stride(0), query.stride(0), query_width, rank, half, eps, R=triton.next_power_of_2(rank),
        HALF=triton.next_power_of_2(half), QUERY=triton.next_power_of_2(query_width) if queries else 0,
        num_warps=4, **early(latent.device),
    )  # fmt: skip
