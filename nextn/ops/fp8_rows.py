"""Rows in e4m3 with one scale for every 128 inputs: what routed experts read with --ep-dispatch-dtype fp8.

Scales are powers of two (DeepSeek's ue8m0): the smallest one with which the block's largest input fits into
e4m3, whose largest number is 448. So a rounded row is exact in bf16, and rounding it again changes nothing.
The native kernels compute the same bits (csrc/fp8_rows.h).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128
LEAST = 127 - 117  # biased exponent of the smallest scale: with it, no e4m3 number is denormal in bf16
MOST_FRACTION = 0x600000  # fraction bits of 448, which is 1.75 * 2**8
OPEN = 0x7F780000  # f32 bits; from here on an input would be rounded to 2**128, or is infinite or NaN
NAN = 0x7F  # in e4m3


def packed_bytes(n: int) -> int:
    """Bytes of a packed row of n inputs.

    >>> packed_bytes(7168)
    7392
    """
    return n + 4 * -(-n // BLOCK)


def pack(x: Tensor) -> Tensor:
    """x [T, n] f32 or bf16 -> [T, packed_bytes(n)] uint8: e4m3 numbers, then the blocks' scales, f32. If an
    input is NaN or would become infinite, its whole block is NaN."""
    codes, scales = _encoded(x)
    return torch.cat((codes, scales.view(torch.uint8)), dim=1)


def unpack(packed: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """The result of `pack` -> the rows [T, n] in `dtype`, as from `rounded`."""
    codes, scales = (t.clone(memory_format=torch.contiguous_format) for t in packed.tensor_split([n], dim=1))
    return _decoded(codes, scales.view(torch.float32), dtype)


def rounded(x: Tensor) -> Tensor:
    """x [T, n] f32 or bf16 -> x with each block rounded to e4m3, in the dtype of x."""
    return _decoded(*_encoded(x), x.dtype)


def _encoded(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, n] -> codes [T, n] uint8, scales [T, blocks] f32."""
    rows, n = x.shape
    blocks = -(-n // BLOCK)
    cells = F.pad(x.float(), (0, blocks * BLOCK - n)).view(rows, blocks, BLOCK)
    largest = (cells.view(torch.int32) & 0x7FFFFFFF).amax(-1, keepdim=True)  # bits are ordered like sizes
    exponent = (largest >> 23) + ((largest & 0x7FFFFF) > MOST_FRACTION).int() - 8
    exponent = exponent.clamp(min=LEAST)
    bad = largest >= OPEN
    scale = (exponent << 23).view(torch.float32).masked_fill(bad, float("nan"))
    codes = (cells * ((254 - exponent) << 23).view(torch.float32)).to(torch.float8_e4m3fn).view(torch.uint8)
    codes = codes.masked_fill(bad, NAN)
    return codes.flatten(1)[:, :n], scale.view(rows, blocks)


def _decoded(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    n = codes.shape[1]
    each = scales.repeat_interleave(BLOCK, dim=1)[:, :n]
    return (codes.contiguous().view(torch.float8_e4m3fn).float() * each).to(dtype)
