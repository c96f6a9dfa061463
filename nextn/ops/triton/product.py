"""The inner loop of every matrix product, and its tiles.

The tiles are those of Triton's matrix multiplication tutorial. An output is the sum over K in order. In bf16
and f16, the matrix units execute one instruction after the other; each adds the products of 16 elements to an
f32 accumulator. In f32 it is one fused multiply-add after the other (no tf32). No tile splits K, so the order
is the same in tiles of every size. The number of rows may determine the tile size without changing a row's
bits. `tests/gpu/test_triton.py` checks this for all sizes used here, with both kinds of matrix units (mma,
wgmma).

Shapes: M rows and N columns of a tile of outputs, K elements of a step of the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.fp8 import Fp8Matrix, Weight

ROWS = 16  # of the smallest tile; the matrix units take no fewer


class Tile(NamedTuple):
    """Rows and columns of outputs, elements per step, warps, and stages of the loop over steps."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


def tile_of(rows: int, n_out: int, n_in: int, dtype: torch.dtype, block: int = 0) -> Tile:
    """The tile for a product. Few rows get tiles with few rows; if the result is narrow, also few columns. So
    there are enough tiles to keep the device busy. Many rows get tiles that reuse their inputs more.

    dtype: of the rows. block: inputs of a block of weights, a power of two, or 0.

    With e4m3 weights, mma sums 16 inputs at a time that are not consecutive, because Triton lets a thread
    read four of them at once. wgmma has another order. Tiles of 64 rows would use wgmma, so e4m3 has none."""
    most = block or 256  # a step ends where a block does
    if dtype == torch.float32:
        return Tile(ROWS if rows <= ROWS else 32, 32, min(most, 32), 4, 2)
    if rows > 4 * ROWS and n_out >= 1024:
        return Tile(32 if block else 64, 128, min(most, 64), 4, 3)
    columns = 16 if n_out <= 2048 else 32 if n_out <= 8192 else 64
    most = min(most, 256 if columns == 16 and n_in % 256 == 0 else 128 if columns < 64 else 64)
    step = max(16, min(most, triton.next_power_of_2(n_in)))
    return Tile(ROWS, columns, step, min(4, columns // 8), 4)


class Operand(NamedTuple):
    """A weight as arguments of kernels. scale: without blocks, the weight again, which no kernel reads.
    block: inputs of a block, or 0."""

    data: Tensor
    scale: Tensor
    block: int


def operand(weight: Weight) -> Operand:
    if isinstance(weight, Fp8Matrix):
        return Operand(weight.data, weight.scale, weight.block)
    return Operand(weight, weight, 0)


@triton.jit
def product(
    a, a_ok, w, w_ok, s, n_in, w_in, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """The sum over k of a[m][k] * w[n][k * w_in], [M, N] f32, in steps of K.

    a [M], w [N]: pointers to the beginnings of rows with n_in elements; a_ok, w_ok: masks of the rows that
    may be read. EVEN: K divides n_in. B: inputs of a block of e4m3 weights, a multiple of K; 0: plain
    weights. s [N]: pointers to the beginnings of the rows of block scales. A block is summed like plain
    weights, with its e4m3 values, which are exact in bf16; its sum is scaled and added. With B, EVEN also
    means that B divides n_in.
    """
    acc = tl.zeros((M, N), dtype=tl.float32)
    if B == 0:
        for at in range(0, n_in, K):
            x = _inputs(a, a_ok, at, n_in, K, EVEN)
            acc = _add(acc, x, w, w_ok, at, n_in, w_in, K, EVEN)
    else:
        for at in range(0, n_in, B):
            block = tl.zeros((M, N), dtype=tl.float32)
            for step in tl.static_range(0, B, K):
                x = _inputs(a, a_ok, at + step, n_in, K, EVEN)
                block = _add(block, x, w, w_ok, at + step, n_in, w_in, K, EVEN)
            acc = _scaled(acc, block, s + at // B, w_ok, M, N)
    return acc


@triton.jit
def two_products(
    a, a_ok, w, v, ok, s, r, n_in, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """(product with w and scales s, product with v and scales r), in one loop, so that both are read at once.
    Each has the same bits as from `product`."""
    first = tl.zeros((M, N), dtype=tl.float32)
    second = tl.zeros((M, N), dtype=tl.float32)
    if B == 0:
        for at in range(0, n_in, K):
            x = _inputs(a, a_ok, at, n_in, K, EVEN)
            first = _add(first, x, w, ok, at, n_in, 1, K, EVEN)
            second = _add(second, x, v, ok, at, n_in, 1, K, EVEN)
    else:
        for at in range(0, n_in, B):
            one = tl.zeros((M, N), dtype=tl.float32)
            other = tl.zeros((M, N), dtype=tl.float32)
            for step in tl.static_range(0, B, K):
                x = _inputs(a, a_ok, at + step, n_in, K, EVEN)
                one = _add(one, x, w, ok, at + step, n_in, 1, K, EVEN)
                other = _add(other, x, v, ok, at + step, n_in, 1, K, EVEN)
            first = _scaled(first, one, s + at // B, ok, M, N)
            second = _scaled(second, other, r + at // B, ok, M, N)
    return first, second


@triton.jit
def _inputs(a, a_ok, at, n_in, K: tl.constexpr, EVEN: tl.constexpr):
    """[M, K]: elements at, ..., at + K - 1 of each row."""
    k = at + tl.arange(0, K)
    ok = a_ok[:, None]
    if not EVEN:
        ok = ok & (k < n_in)[None, :]
    return tl.load(a[:, None] + k[None, :], mask=ok, other=0.0)


@triton.jit
def _add(acc, x, w, w_ok, at, n_in, w_in, K: tl.constexpr, EVEN: tl.constexpr):
    """acc plus the products of x with elements at, ..., at + K - 1 of w."""
    k = at + tl.arange(0, K)
    ok = w_ok[None, :]
    if not EVEN:
        ok = ok & (k < n_in)[:, None]
    y = tl.load(w[None, :] + k[:, None] * w_in, mask=ok, other=0.0)
    return tl.dot(x, y.to(x.dtype), acc, input_precision="ieee")


@triton.jit
def _scaled(acc, block, scale, ok, M: tl.constexpr, N: tl.constexpr):
    """acc + block * scales. scale [N]: pointers to the scales."""
    factor = tl.load(scale, mask=ok, other=0.0)
    return tl.fma(block, tl.broadcast_to(factor[None, :], (M, N)), acc)
