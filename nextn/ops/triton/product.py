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

ROWS = 16  # of the lowest tile, the fewest that the matrix units take


class Tile(NamedTuple):
    """Rows and columns of outputs, elements a step; warps that compute it, steps that are read ahead."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


def tile_of(rows: int, n_out: int, n_in: int, dtype: torch.dtype) -> Tile:
    """Few rows: low tiles, and narrow ones where the result is narrow, so that there are enough of them to
    keep the device busy. Many rows: tiles that use what they read more often."""
    if dtype == torch.float32:
        return Tile(ROWS if rows <= ROWS else 32, 32, 32, 4, 2)
    if rows > 4 * ROWS and n_out >= 1024:
        return Tile(64, 128, 64, 4, 3)
    columns = 16 if n_out <= 1024 else 32 if n_out <= 8192 else 64
    step = max(16, min(128 if columns < 64 else 64, triton.next_power_of_2(n_in)))
    return Tile(ROWS, columns, step, min(4, columns // 8), 4)


@triton.jit
def product(
    a, a_ok, w, w_ok, n_in, w_in, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr
):
    """sum over k of a[m][k] * w[n][k * w_in], [M, N] f32, in steps of K.

    a [M], w [N]: pointers to where rows of `n_in` elements begin; a_ok, w_ok: which of them may be read.
    EVEN: K divides n_in.
    """
    k = tl.arange(0, K)
    acc = tl.zeros((M, N), dtype=tl.float32)
    for at in range(0, n_in, K):
        if EVEN:
            x_ok = a_ok[:, None]
            y_ok = w_ok[None, :]
        else:
            x_ok = a_ok[:, None] & (at + k < n_in)[None, :]
            y_ok = w_ok[None, :] & (at + k < n_in)[:, None]
        x = tl.load(a[:, None] + (at + k)[None, :], mask=x_ok, other=0.0)
        y = tl.load(w[None, :] + (at + k)[:, None] * w_in, mask=y_ok, other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    return acc
