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

    dtype: of the rows. block: inputs of a block of weights, a power of two, or 0."""
    most = block or 128  # a step ends where a block does
    if dtype == torch.float32:
        return Tile(ROWS if rows <= ROWS else 32, 32, min(most, 32), 4, 2)
    if rows > 4 * ROWS and n_out >= 1024:
        return Tile(64, 128, min(most, 64), 4, 3)
    columns = 16 if n_out <= 1024 else 32 if n_out <= 8192 else 64
    step = max(16, min(most, 128 if columns < 64 else 64, triton.next_power_of_2(n_in)))
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
            acc = _step(acc, a, a_ok, w, w_ok, at, n_in, w_in, K, EVEN)
    else:
        for at in range(0, n_in, B):
            block = tl.zeros((M, N), dtype=tl.float32)
            for step in tl.static_range(0, B, K):
                block = _step(block, a, a_ok, w, w_ok, at + step, n_in, w_in, K, EVEN)
            scale = tl.load(s + at // B, mask=w_ok, other=0.0)
            acc = tl.fma(block, tl.broadcast_to(scale[None, :], (M, N)), acc)
    return acc


@triton.jit
def _step(acc, a, a_ok, w, w_ok, at, n_in, w_in, K: tl.constexpr, EVEN: tl.constexpr):
    """Adds the products of elements at, at + 1, ... at + K - 1."""
    k = at + tl.arange(0, K)
    if EVEN:
        x_ok = a_ok[:, None]
        y_ok = w_ok[None, :]
    else:
        x_ok = a_ok[:, None] & (k < n_in)[None, :]
        y_ok = w_ok[None, :] & (k < n_in)[:, None]
    x = tl.load(a[:, None] + k[None, :], mask=x_ok, other=0.0)
    y = tl.load(w[None, :] + k[:, None] * w_in, mask=y_ok, other=0.0)
    return tl.dot(x, y.to(x.dtype), acc, input_precision="ieee")
