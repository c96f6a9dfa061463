"""Rows as e4m3, with a scale for each 128 inputs: what routed experts read with --ep-dispatch-dtype fp8.

Scales are powers of two (DeepSeek's ue8m0): the least by which the block's largest input fits into e4m3,
whose largest number is 448. So a rounded row is exact in bf16, and rounding it again changes nothing. The
native kernels have the same bits (csrc/fp8_rows.h).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128
LEAST = 127 - 117  # exponent of the least scale: with it, no e4m3 number is denormal in bf16
MOST_FRACTION = 0x600000  # 448 is 1.75 * 2**8
OPEN = 0x7F780000  # from here on the nearest number is 2**128, or there is none
NAN = 0x7F  # in e4m3


def packed_bytes(n: int) -> int:
    """Of a row of n inputs.

    >>> packed_bytes(7168)
    7392
    """
    return n + 4 * -(-n // BLOCK)


def pack(x: Tensor) -> Tensor:
    """x [T, n] f32 or bf16 -> [T, packed_bytes(n)] uint8: e4m3 numbers, then the blocks' scales, f32. A block
    with a NaN in it, or with an input that would become infinite, is NaN."""
    codes, scales = _encoded(x)
    return torch.cat((codes, scales.view(torch.uint8)), dim=1)


def unpack(packed: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """`pack`'s -> `rounded`'s."""
    codes, scales = (t.clone(memory_format=torch.contiguous_format) for t in packed.tensor_split([n], dim=1))
    return _decoded(codes, scales.view(torch.float32), dtype)


def rounded(x: Tensor) -> Tensor:
    """x [T, n] f32 or bf16 -> the same, each block rounded to e4m3."""
    return _decoded(*_encoded(x), x.dtype)


def _encoded(x: Tensor) -> tuple[Tensor, Tensor]:
    """-> codes [T, n] uint8, scales [T, blocks] f32."""
    rows, n = x.shape
    blocks = -(-n // BLOCK)
    cells = F.pad(x.float(), (0, blocks * BLOCK - n)).view(rows, blocks, BLOCK)
    largest = (cells.view(torch.int32) & 0x7FFFFFFF).amax(-1, keepdim=True)  # their order is that of sizes
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
