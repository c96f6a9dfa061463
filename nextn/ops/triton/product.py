"""The inner loop of every matrix product, and its tiles.

The tiles of Triton's matrix multiplication tutorial. An output is the sum over K in order: in bf16 and f16
one instruction of the matrix units after the other, each adding the products of its 16 elements to an f32
accumulator; in f32 one fused multiply-add after the other (no tf32). No tile splits K, so the order is the
same in tiles of every size: their size may follow from the number of rows, and a row's bits do not.
`tests/gpu/test_triton.py` holds that over all sizes used here, matrix units of both kinds (mma, wgmma)
among them.

Shapes: M rows and N columns of a tile of outputs, K elements of a step of the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.fp8 import Fp8Matrix, Weight

ROWS = 16  # of the lowest tile, the fewest that the matrix units take


class Tile(NamedTuple):
    """Rows and columns of outputs, elements a step; warps that compute it, steps that are read ahead."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


def tile_of(rows: int, n_out: int, n_in: int, dtype: torch.dtype, block: int = 0) -> Tile:
    """Few rows: low tiles, and narrow ones where the result is narrow, so that there are enough of them to
    keep the device busy. Many rows: tiles that use what they read more often.

    dtype: of the rows. block: inputs of a block of weights, a power of two, or 0.

    With e4m3 weights, mma adds up 16 inputs at a time that do not follow one another, because Triton lets a
    thread read four of them at once. wgmma has another order. Tiles of 64 rows would use it, so none does."""
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
    """A weight as kernels take it. scale: without blocks, the weight again; nothing reads it. block: inputs
    of a block, or 0."""

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
    """sum over k of a[m][k] * w[n][k * w_in], [M, N] f32, in steps of K.

    a [M], w [N]: pointers to where rows of `n_in` elements begin; a_ok, w_ok: which of them may be read.
    EVEN: K divides n_in. B: inputs of a block of e4m3 weights, a multiple of K; 0: the weights are plain.
    s [N]: pointers to where the blocks' scales of each row begin. A block is summed like plain weights, with
    its e4m3 values, which bf16 holds; its sum is scaled and added. EVEN: B divides n_in, too.
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
    """The products with w and scales s, and with v and scales r, in one loop, so that both are read at once.
    Each has the bits that `product` gives it."""
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
    """Elements at, at + 1, ... at + K - 1 of each row, [M, K]."""
    k = at + tl.arange(0, K)
    ok = a_ok[:, None]
    if not EVEN:
        ok = ok & (k < n_in)[None, :]
    return tl.load(a[:, None] + k[None, :], mask=ok, other=0.0)


@triton.jit
def _add(acc, x, w, w_ok, at, n_in, w_in, K: tl.constexpr, EVEN: tl.constexpr):
    """Adds the products of x with these elements of w."""
    k = at + tl.arange(0, K)
    ok = w_ok[None, :]
    if not EVEN:
        ok = ok & (k < n_in)[:, None]
    y = tl.load(w[None, :] + k[:, None] * w_in, mask=ok, other=0.0)
    return tl.dot(x, y.to(x.dtype), acc, input_precision="ieee")


@triton.jit
def _scaled(acc, block, scale, ok, M: tl.constexpr, N: tl.constexpr):
    """acc + block times the scales [N] that these pointers name."""
    factor = tl.load(scale, mask=ok, other=0.0)
    return tl.fma(block, tl.broadcast_to(factor[None, :], (M, N)), acc)
