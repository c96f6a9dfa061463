"""Random few-bit matrices as files have them, and their values: the formats' definitions in plain torch.

w = scale * code - min for each weight. The block layouts are from llama.cpp's ggml-common.h and `gguf.quants`
(GGUF), and from `nextn.ops.stored` (INT4).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nextn.ops.cpu.coded import BLOCKS
from nextn.ops.cpu.interface import INT4, INT4Z, KINDS, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0
from nextn.ops.cpu.weights import PackedWeight
from nextn.ops.stored import INT4 as INT4_NAME
from nextn.ops.stored import Format, Stored

CODED = (INT4, INT4Z, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, Q4_1, Q5_0, Q5_1)
GGUF_BYTES = {Q4_0: 18, Q4_1: 20, Q5_0: 22, Q5_1: 24, Q8_0: 34, Q4_K: 144, Q5_K: 176, Q6_K: 210}
HALVES = {  # offsets of f16 numbers in a block
    Q4_0: (0,), Q4_1: (0, 2), Q5_0: (0,), Q5_1: (0, 2), Q8_0: (0,), Q4_K: (0, 2), Q5_K: (0, 2), Q6_K: (208,),
}  # fmt: skip
BITS = {
    INT4: 4, INT4Z: 4, Q4_0: 4, Q4_1: 4, Q5_0: 5, Q5_1: 5, Q8_0: 8, Q4_K: 4, Q5_K: 5, Q6_K: 6,
}  # fmt: skip


class Parts(NamedTuple):
    """scale, code and min: [n, k] f64 each."""

    scale: Tensor
    code: Tensor
    min: Tensor

    @property
    def weight(self) -> Tensor:
        return self.scale * self.code - self.min


def random_stored(kind: int, n: int, k: int, seed: int = 0, group: int = 32) -> Stored:
    """A random matrix with all codes and all scales of few bits. Scales in f16 are between 0.01 and 0.04,
    some of them negative."""
    gen = torch.Generator().manual_seed(1000 * n + k + seed)

    def numbers(*shape: int) -> Tensor:
        sign = 1 - 2 * (torch.rand(shape, generator=gen) < 0.2).float()
        return (torch.rand(shape, generator=gen) * 0.03 + 0.01) * sign

    if kind in (INT4, INT4Z):
        data = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=gen)
        zero = torch.randint(0, 16, (n, k // group), dtype=torch.uint8, generator=gen)
        form = Format(INT4_NAME, group, kind == INT4Z)
        return Stored(form, (n, k), data, numbers(n, k // group), zero if kind == INT4Z else None)
    blocks = k // BLOCKS[kind]
    data = torch.randint(0, 256, (n, blocks, GGUF_BYTES[kind]), dtype=torch.uint8, generator=gen)
    for at in HALVES[kind]:
        data[:, :, at : at + 2] = numbers(n, blocks, 1).half().view(torch.uint8)
    return Stored(Format(KINDS[kind], 0), (n, k), data.view(n, -1))


def parts(kind: int, stored: Stored) -> Parts:
    n, k = stored.shape
    if kind in (INT4, INT4Z):
        assert stored.scale is not None
        each = k // stored.scale.shape[1]
        code = torch.stack((stored.data & 15, stored.data >> 4), 2).view(n, k).double()
        zero = torch.full((n, k), 8.0, dtype=torch.double)
        if stored.zero is not None:
            zero = stored.zero.double().repeat_interleave(each, 1)
        kept = (stored.scale * 256).half().double() / 256  # the scales that panels have
        return Parts(kept.repeat_interleave(each, 1), code - zero, torch.zeros(n, k, dtype=torch.double))
    block = stored.data.view(n, -1, GGUF_BYTES[kind])
    found = {
        Q4_0: _q4_0, Q4_1: _q4_1, Q5_0: _q5_0, Q5_1: _q5_1, Q8_0: _q8_0,
        Q4_K: _q4_k, Q5_K: _q5_k, Q6_K: _q6_k,
    }[kind](block)  # fmt: skip
    return Parts(*(part.expand_as(found.code).reshape(n, k) for part in found))


def packed(kind: int, n: int, k: int, seed: int = 0, group: int = 32) -> tuple[PackedWeight, Parts]:
    stored = random_stored(kind, n, k, seed, group)
    weight = PackedWeight(n, k, kind, block=group if kind in (INT4, INT4Z) else 0)
    weight.place(stored)
    return weight, parts(kind, stored)


def _half(block: Tensor, at: int) -> Tensor:
    """The f16 numbers at offset `at`, [n, blocks, 1] f64."""
    return block[..., at : at + 2].contiguous().view(torch.half).double()


def _none(code: Tensor) -> Tensor:
    return torch.zeros_like(code)


def _q4_0(block: Tensor) -> Parts:
    code = torch.cat((block[..., 2:] & 15, block[..., 2:] >> 4), -1).double() - 8
    return Parts(_half(block, 0), code, _none(code))


def _q4_1(block: Tensor) -> Parts:
    code = torch.cat((block[..., 4:] & 15, block[..., 4:] >> 4), -1).double()
    return Parts(_half(block, 0), code, -_half(block, 2))


def _five_bits(block: Tensor, at: int) -> Tensor:
    """Codes [n, blocks, 32]: four bytes have the fifth bits, the bytes after them the lower four."""
    high = block[..., at : at + 4, None] >> torch.arange(8, dtype=torch.uint8) & 1
    low = block[..., at + 4 :]
    return (torch.cat((low & 15, low >> 4), -1) | high.flatten(-2) << 4).double()


def _q5_0(block: Tensor) -> Parts:
    code = _five_bits(block, 2) - 16
    return Parts(_half(block, 0), code, _none(code))


def _q5_1(block: Tensor) -> Parts:
    return Parts(_half(block, 0), _five_bits(block, 4), -_half(block, 2))


def _q8_0(block: Tensor) -> Parts:
    code = block[..., 2:].contiguous().view(torch.int8).double()
    return Parts(_half(block, 0), code, _none(code))


def _six_bits(block: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and mins of the 8 groups, [n, blocks, 8, 1]: 6 bits each, in 12 bytes."""
    low, mid, both = (block[..., at : at + 4] for at in (4, 8, 12))
    scale = torch.cat((low & 63, both & 15 | low >> 6 << 4), -1)
    least = torch.cat((mid & 63, both >> 4 | mid >> 6 << 4), -1)
    return scale.double()[..., None], least.double()[..., None]


def _four_bits(packed: Tensor) -> Tensor:
    """[n, blocks, 128] -> [n, blocks, 8, 32]: every 32 bytes have two groups, in their low and high
    halves."""
    lines = packed.unflatten(-1, (4, 1, 32))
    return torch.cat((lines & 15, lines >> 4), -2).flatten(-3, -2)


def _q4_k(block: Tensor) -> Parts:
    scale, least = _six_bits(block)
    code = _four_bits(block[..., 16:])
    return Parts(_half(block, 0)[..., None] * scale, code.double(), _half(block, 2)[..., None] * least)


def _q5_k(block: Tensor) -> Parts:
    scale, least = _six_bits(block)
    high = block[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    code = _four_bits(block[..., 48:]) | high << 4
    return Parts(_half(block, 0)[..., None] * scale, code.double(), _half(block, 2)[..., None] * least)


def _q6_k(block: Tensor) -> Parts:
    """Two halves of 128 weights, each 4 groups of 32, with the low bits in 64 bytes and the high bits in
    32."""
    low = block[..., :128].unflatten(-1, (2, 1, 64))
    low = torch.cat((low & 15, low >> 4), -2).flatten(-2).unflatten(-1, (4, 32))
    high = (
        block[..., 128:192].unflatten(-1, (2, 1, 32))
        >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
        & 3
    )
    code = ((low | high << 4).double() - 32).flatten(-3).unflatten(-1, (16, 16))
    scale = block[..., 192:208].contiguous().view(torch.int8).double()[..., None]
    return Parts(_half(block, 208)[..., None] * scale, code, _none(code))
