"""Converts matrices in a few bits to plain ones: for kernels that cannot read them, and as an oracle for
kernels that can.

GGUF's blocks are ggml's: ggml-common.h has their layouts. The operations have the order of ggml-quants.c, so
values have the same bits. A block has 32 inputs, or 256 inputs in groups (K types).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nextn.ops.stored import INT4, Stored

CHUNK = 1 << 20  # values widened at once: with about 20 bytes each in between, they fit into caches


def widened(stored: Stored, dtype: torch.dtype) -> Tensor:
    """The matrix [n, k] in this dtype."""
    n, k = stored.shape
    out = torch.empty(n, k, dtype=dtype)
    rows = max(1, CHUNK // max(1, k))
    for first in range(0, n, rows):
        part = range(first, min(n, first + rows))
        out[first : part.stop] = _float(stored.rows(part))
    return out


def _float(stored: Stored) -> Tensor:
    if stored.format.name == INT4:
        return _int4(stored)
    size, of_blocks = BLOCKS[stored.format.name]
    return of_blocks(stored.data.reshape(-1, size)).view(stored.shape)


def _int4(stored: Stored) -> Tensor:
    (n, k), scale = stored.shape, stored.scale
    assert scale is not None
    codes = torch.stack((stored.data & 15, stored.data >> 4), 2).view(n, scale.shape[1], -1).float()
    zero = 8 if stored.zero is None else stored.zero[..., None].float()
    return ((codes - zero) * scale[..., None]).view(n, k)


def _half(blocks: Tensor, at: int) -> Tensor:
    """[blocks, 1] f32: the f16 number at byte `at` of each block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _bits(data: Tensor, width: int, run: int) -> Tensor:
    """Codes of `width` bits from data [blocks, bytes]. For each run of `run` bytes: first the lowest bits of
    all its bytes, then the next higher bits, and so on.

    >>> _bits(torch.tensor([[0x21, 0x43]], dtype=torch.uint8), 4, 2)
    tensor([[1, 3, 2, 4]], dtype=torch.uint8)
    """
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return ((data.view(len(data), -1, 1, run) >> shifts) & ((1 << width) - 1)).view(len(data), -1)


def _q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_bits(b[:, 2:], 4, 16).float() - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _bits(b[:, 4:], 4, 16).float() + _half(b, 2)


def _q5(b: Tensor, at: int) -> Tensor:
    """32 codes of 5 bits: their highest bits begin at byte `at`, the other bits follow."""
    high = _bits(b[:, at : at + 4], 1, 1)
    return (_bits(b[:, at + 4 :], 4, 16) | high << 4).float()


def _q5_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_q5(b, 2) - 16)


def _q5_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _q5(b, 4) + _half(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return b[:, 2:].view(torch.int8).float() * _half(b, 0)


def _grouped(codes: Tensor, scale: Tensor) -> Tensor:
    """Codes [blocks, 256] in the groups of the scales [blocks, groups] -> [blocks, groups, inputs] f32."""
    return codes.view(*scale.shape, -1).float()


def _q2_k(b: Tensor) -> Tensor:
    scale = _half(b, 80) * (b[:, :16] & 15).float()
    least = _half(b, 82) * (b[:, :16] >> 4).float()
    codes = _grouped(_bits(b[:, 16:80], 2, 32), scale)
    return scale[..., None] * codes - least[..., None]


def _q3_k(b: Tensor) -> Tensor:
    low = _bits(b[:, 96:104], 4, 8)  # scales have 6 bits; the highest two are stored separately
    scale = _half(b, 108) * ((low | _bits(b[:, 104:108], 2, 4) << 4).float() - 32)
    high = _bits(b[:, :32], 1, 32)  # 0: subtract 4
    codes = _bits(b[:, 32:96], 2, 32).float() - (4 - 4 * high.float())
    return scale[..., None] * _grouped(codes, scale)


def _scales(b: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, minimum) of the 8 groups of a Q4_K or Q5_K block, of 6 bits each. A byte has a number of the
    first four groups, and in its top bits the highest two bits of a number of the other groups."""
    d, m, others = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = torch.cat((d & 63, others & 15 | (d >> 2) & 48), 1)
    least = torch.cat((m & 63, others >> 4 | (m >> 2) & 48), 1)
    return _half(b, 0) * scale.float(), _half(b, 2) * least.float()


def _q4_k(b: Tensor) -> Tensor:
    scale, least = _scales(b)
    return scale[..., None] * _grouped(_bits(b[:, 16:], 4, 32), scale) - least[..., None]


def _q5_k(b: Tensor) -> Tensor:
    scale, least = _scales(b)
    codes = _bits(b[:, 48:], 4, 32) | _bits(b[:, 16:48], 1, 32) << 4
    return scale[..., None] * _grouped(codes, scale) - least[..., None]


def _q6_k(b: Tensor) -> Tensor:
    scale = _half(b, 208) * b[:, 192:208].view(torch.int8).float()
    codes = (_bits(b[:, :128], 4, 64) | _bits(b[:, 128:192], 2, 32) << 4).float() - 32
    return scale[..., None] * _grouped(codes, scale)


# Type -> (bytes of a block, function that widens blocks).
BLOCKS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
