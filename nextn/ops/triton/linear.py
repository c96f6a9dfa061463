"""Products of all rows with one matrix, or with one matrix per head; queries; and the first half of SwiGLU.

Shapes: T rows, H heads. The axes of the grid are tiles of rows, tiles of columns, and heads. Tiles of rows
are first, so that programs which read the same weights run at the same time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.fp8 import Weight
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.ops.triton.product import Operand, operand, product, tile_of, two_products


@triton.jit
def _matmul(
    x, w, s, out, rows, n_out, n_in, x_row, x_head, w_head, w_out, w_in, s_out, out_row, out_head,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [T, H, n_out] <- x [T, H, n_in] times w. In a head of w, output n and input k have offset
    n * w_out + k * w_in. s, s_out, B: see `product`; only with a single head."""
    wait(PDL)
    head = tl.program_id(2)
    row = tl.program_id(0) * M + tl.arange(0, M)
    col = tl.program_id(1) * N + tl.arange(0, N)
    row_ok, col_ok = row < rows, col < n_out
    acc = product(
        x + head * x_head + row * x_row, row_ok, w + head * w_head + col * w_out, col_ok, s + col * s_out,
        n_in, w_in, M, N, K, EVEN, B,
    )  # fmt: skip
    let_next_start(PDL)
    to, ok = head * out_head + row[:, None] * out_row + col[None, :], row_ok[:, None] & col_ok[None, :]
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _absorb(
    q, w, cos, sin, out, rows, n_out, n_in, half, scale, q_row, q_head, w_head, w_in, out_row, out_head,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, HALF: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """out [T, H, n_out + 2 * half] <- scale times q[..., :n_in] W, followed by scale times the other elements
    of q, their pairs rotated by cos and sin [T, half]. The programs of the first columns do the rotation."""
    wait(PDL)
    head = tl.program_id(2)
    row = tl.program_id(0) * M + tl.arange(0, M)
    col = tl.program_id(1) * N + tl.arange(0, N)
    row_ok, col_ok = row < rows, col < n_out
    of_head = q + head * q_head + row * q_row
    acc = product(of_head, row_ok, w + head * w_head + col, col_ok, w, n_in, w_in, M, N, K, EVEN, 0)
    let_next_start(PDL)
    to = out + head * out_head + row * out_row
    tl.store(
        to[:, None] + col[None, :], (acc * scale).to(out.dtype.element_ty),
        mask=row_ok[:, None] & col_ok[None, :],
    )  # fmt: skip
    if tl.program_id(1) == 0:
        i = tl.arange(0, HALF)
        ok = row_ok[:, None] & (i < half)[None, :]
        c = tl.load(cos + row[:, None] * half + i[None, :], mask=ok, other=0.0)
        s = tl.load(sin + row[:, None] * half + i[None, :], mask=ok, other=0.0)
        pair = of_head[:, None] + n_in + 2 * i[None, :]
        even = tl.load(pair, mask=ok, other=0.0).to(tl.float32)
        odd = tl.load(pair + 1, mask=ok, other=0.0).to(tl.float32)
        turned = to[:, None] + n_out + 2 * i[None, :]
        tl.store(turned, ((even * c - odd * s) * scale).to(out.dtype.element_ty), mask=ok)
        tl.store(turned + 1, ((even * s + odd * c) * scale).to(out.dtype.element_ty), mask=ok)


@triton.jit
def _gate_up(
    x, w, s, out, rows, width, n_in, x_row, w_row, s_row, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [T, width] <- silu(x G^T) * (x U^T); w [2 * width, n_in] has the rows of G, then those of U.
    s, B: see `product`."""
    wait(PDL)
    row = tl.program_id(0) * M + tl.arange(0, M)
    col = tl.program_id(1) * N + tl.arange(0, N)
    row_ok, col_ok = row < rows, col < width
    a, after = x + row * x_row, width + col
    gate, up = two_products(
        a, row_ok, w + col * w_row, w + after * w_row, col_ok, s + col * s_row, s + after * s_row, n_in,
        M, N, K, EVEN, B,
    )  # fmt: skip
    let_next_start(PDL)
    hidden = gate / (1.0 + tl.exp(-gate)) * up
    to = out + row[:, None] * width + col[None, :]
    tl.store(to, hidden.to(out.dtype.element_ty), mask=row_ok[:, None] & col_ok[None, :])


def linear(x: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    """x [T, n_in], weight [n_out, n_in] -> [T, n_out] of this dtype."""
    w = operand(weight)
    return _heads_matmul(x[:, None], w._replace(data=w.data.t()[None]), dtype)[:, 0]


def heads_matmul(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """x [T, H, n_in], weight [H, n_in, n_out] with any strides -> [T, H, n_out]."""
    return _heads_matmul(x, operand(weight), dtype)


def _heads_matmul(x: Tensor, w: Operand, dtype: torch.dtype) -> Tensor:
    assert x.stride(2) == 1
    (rows, heads, n_in), n_out = x.shape, w.data.shape[2]
    tile = tile_of(rows, n_out, n_in, x.dtype, w.block)
    out = torch.empty(rows, heads, n_out, dtype=dtype, device=x.device)
    _matmul[triton.cdiv(rows, tile.rows), triton.cdiv(n_out, tile.columns), heads](
        x, w.data, w.scale, out, rows, n_out, n_in, x.stride(0), x.stride(1),
        w.data.stride(0), w.data.stride(2), w.data.stride(1), w.scale.stride(0), out.stride(0), out.stride(1),
        M=tile.rows, N=tile.columns, K=tile.step, EVEN=n_in % (w.block or tile.step) == 0, B=w.block,
        num_warps=tile.warps, num_stages=tile.stages, **early(x.device),
    )  # fmt: skip
    return out


def absorb(q: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
    """q [T, H, N + P], weight [H, N, R], cos and sin [T, P / 2] -> [T, H, R + P]."""
    assert q.stride(2) == weight.stride(2) == 1
    (rows, heads, width), (_, n_in, n_out) = q.shape, weight.shape
    half = (width - n_in) // 2
    tile = tile_of(rows, n_out, n_in, q.dtype)
    out = torch.empty(rows, heads, n_out + 2 * half, dtype=q.dtype, device=q.device)
    _absorb[triton.cdiv(rows, tile.rows), triton.cdiv(n_out, tile.columns), heads](
        q, weight, cos, sin, out, rows, n_out, n_in, half, scale, q.stride(0), q.stride(1),
        weight.stride(0), weight.stride(1), out.stride(0), out.stride(1),
        M=tile.rows, N=tile.columns, K=tile.step, EVEN=n_in % tile.step == 0,
        HALF=triton.next_power_of_2(half), num_warps=tile.warps, num_stages=tile.stages, **early(q.device),
    )  # fmt: skip
    return out


def gate_up(x: Tensor, weight: Weight) -> Tensor:
    """x [T, C], weight [2 * I, C] -> silu(gate) * up [T, I]."""
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    (rows, n_in), width, w = x.shape, weight.shape[0] // 2, operand(weight)
    tile = tile_of(rows, width, n_in, x.dtype, w.block)
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    _gate_up[triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.columns)](
        x, w.data, w.scale, out, rows, width, n_in, x.stride(0), w.data.stride(0), w.scale.stride(0),
        M=tile.rows, N=tile.columns, K=tile.step, EVEN=n_in % (w.block or tile.step) == 0, B=w.block,
        num_warps=tile.warps, num_stages=tile.stages, **early(x.device),
    )  # fmt: skip
    return out
