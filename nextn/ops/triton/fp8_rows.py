"""`nextn.ops.fp8_rows.rounded` with the same bits. A program rounds some blocks of a row. It rounds the bits
of f32 numbers, because older GPUs cannot convert to e4m3."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.fp8_rows import BLOCK, LEAST, MOST_FRACTION, OPEN
from nextn.ops.triton.early import early, let_next_start, wait

BLOCKS = 8  # per program


@triton.jit
def _round(
    x, out, x_row, width, B: tl.constexpr, N: tl.constexpr, LOWEST: tl.constexpr, TOP: tl.constexpr,
    BAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait(PDL)
    let_next_start(PDL)
    row = tl.program_id(0)
    block = tl.program_id(1) * N + tl.arange(0, N)[:, None]
    c = block * B + tl.arange(0, B)[None, :]
    v = tl.load(x + row * x_row + c, mask=c < width, other=0.0).to(tl.float32)
    size = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    largest = tl.max(size, axis=1)[:, None]
    exponent = tl.maximum((largest >> 23) + ((largest & 0x7FFFFF) > TOP).to(tl.int32) - 8, LOWEST)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    bits = (v * ((254 - exponent) << 23).to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) & 0x7FF00000).to(tl.float32, bitcast=True)
    # Below 2**-6, e4m3 has steps of 2**-9. Adding 16384 rounds to them: its last bit is 2**-9.
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0) - 16384.0
    found = tl.where(magnitude < 0x3C800000, small, normal) * scale
    found = tl.where(bits < 0, -found, found)
    found = tl.where(largest >= BAD, float("nan"), found)
    tl.store(out + row * width + c, found.to(out.dtype.element_ty), mask=c < width)


def rounded(x: Tensor) -> Tensor:
    """x [T, n] -> [T, n] in the dtype of x."""
    assert x.stride(1) == 1
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    _round[rows, triton.cdiv(width, BLOCK * BLOCKS)](
        x, out, x.stride(0), width, B=BLOCK, N=BLOCKS, LOWEST=LEAST, TOP=MOST_FRACTION, BAD=OPEN,
        num_warps=4, enable_fp_fusion=False, **early(x.device),
    )  # fmt: skip
    return out
