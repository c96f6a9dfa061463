"""Packs weights for the native kernels: into panels (csrc/panels.h), in bf16, e4m3, int8, f32, or a few bits
(csrc/coded.h)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.ops.cpu import coded
from nextn.ops.cpu.interface import BF16, E4M3, F32, INT4, INT4Z, INT8, Weight
from nextn.ops.cpu.library import library
from nextn.ops.int4 import quantize_int4
from nextn.ops.stored import Stored

STORED = {F32: torch.float32, BF16: torch.bfloat16, E4M3: torch.uint8, INT8: torch.int8}
SLACK = 4096  # bytes after the last panel, which a prefetch may address
LARGE_PAGE = 1 << 21
CHUNK = 1 << 26  # bytes of address space; unused ones take no memory


def padded(n: int, to: int) -> int:
    """Smallest multiple of `to` that is >= n."""
    return -(-n // to) * to


def in_large_pages(size: int) -> Tensor:
    """[size] uint8, uninitialised, in pages of 2 MiB if Linux provides them."""
    data = torch.empty(size, dtype=torch.uint8)
    library().nx_advise(data.data_ptr(), size)  # before the first access, which allocates the pages
    return data


class Arena:
    """Memory in large pages, for weights of any size. A step reads all weights; with pages of 4 KiB it would
    need as many address look-ups as it reads rows of weights."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """[size] uint8 zeros, aligned to a cache line."""
        whole_lines = padded(size, 64)
        if whole_lines > self._left.numel():
            whole = in_large_pages(max(CHUNK, whole_lines) + LARGE_PAGE)
            self._left = whole[-whole.data_ptr() % LARGE_PAGE :]
        taken, self._left = self._left[:size], self._left[whole_lines:]
        return taken.zero_()


class PackedWeight:
    """`members` weights of the same shape, one after another (heads, experts), or a single weight.

    n_out, n_in: shape of a member. block: inputs per scale, for e4m3 (even) and INT4. int8 has one scale for
    each output, and GGUF's kinds have fixed blocks. Inputs of few-bit kinds are whole blocks. Outputs that
    are never placed are zero. arena: where to allocate the memory; None: a new one.
    """

    def __init__(
        self,
        n_out: int,
        n_in: int,
        kind: int = BF16,
        members: int = 1,
        block: int = 0,
        arena: Arena | None = None,
    ) -> None:
        assert kind != E4M3 or (block > 0 and block % 2 == 0), block
        self.shape, self.kind, self.members = (n_out, n_in), kind, members
        outs, ins = padded(n_out, 16), n_in if kind == F32 else padded(n_in, 2)
        self.block = ins if kind == INT8 else block
        if kind in coded.BLOCKS:
            self.block = coded.block_of(block or coded.BLOCKS[kind])
            assert ins % max(self.block, coded.BLOCKS[kind]) == 0, (n_in, self.block)
        self.stride = outs * int(library().nx_output_bytes(kind, ins, self.block))
        self.data = (arena or Arena()).take(members * self.stride + SLACK)
        self.scales: Tensor | None = None
        blocks = 0
        if kind in (E4M3, INT8):
            blocks = -(-ins // self.block)
            self.scales = torch.zeros(members, outs * blocks)
        self.struct = Weight(
            self.data.data_ptr(),
            None if self.scales is None else self.scales.data_ptr(),
            outs,
            ins,
            kind,
            self.block,
            self.stride,
            outs * blocks,
        )

    @property
    def bytes(self) -> int:
        """Number of bytes of weights and scales."""
        scales = 0 if self.scales is None else self.scales.numel() * 4
        return self.members * self.stride + scales

    def member(self, member: int) -> list[NDArray[np.uint8]]:
        """All bytes of one member, as views: weights, then scales if it has some."""
        data = self.data[member * self.stride : (member + 1) * self.stride]
        scales = [] if self.scales is None else [self.scales[member].view(torch.uint8)]
        return [one.numpy() for one in (data, *scales)]

    def place(
        self,
        weight: Tensor | Stored,
        *,
        scale: Tensor | None = None,
        member: int = 0,
        first: int = 0,
        transposed: bool = False,
        interleave: int = 1,
    ) -> None:
        """Puts weight [rows, n_in] ([n_in, rows] if transposed) at outputs first, first + 1, ...

        interleave 2: groups of 16 rows go to every other group of outputs, beginning with group `first` (0 or
        1). scale [rows, blocks] f32: for e4m3, whose weight is e4m3 as stored; int8 computes its own scales.
        Few-bit kinds take `Stored` of their format; INT4 also takes plain weights and converts them.
        """
        if isinstance(weight, Stored):
            to = self.data.data_ptr() + member * self.stride
            coded.place(weight, to, self.struct, first, interleave)
            return
        if self.kind in (INT4, INT4Z):
            assert not transposed
            made = quantize_int4(weight, self.block, self.kind == INT4Z)
            self.place(made, member=member, first=first, interleave=interleave)
            return
        if self.kind == INT8:
            weight = (weight.T if transposed else weight).float()
            transposed = False
            scale = weight.abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
            weight = torch.round(weight / scale).to(torch.int8)
        elif self.kind == E4M3:
            assert weight.dtype == torch.float8_e4m3fn, weight.dtype
            assert scale is not None
            weight = weight.view(torch.uint8)
        weight = weight.to(STORED[self.kind]).contiguous()
        rows, columns = weight.shape[::-1] if transposed else weight.shape
        assert columns == self.shape[1], (weight.shape, self.shape)
        library().nx_pack(
            weight.data_ptr(), rows, columns, weight.shape[1], transposed,
            self.data.data_ptr() + member * self.stride, self.struct.n_out, self.struct.n_in, self.kind,
            first, interleave,
        )  # fmt: skip
        if scale is not None:
            self._place_scales(scale.float(), member, first, interleave)

    def _place_scales(self, scale: Tensor, member: int, first: int, interleave: int) -> None:
        assert self.scales is not None
        outs, blocks = int(self.struct.n_out), scale.shape[1]
        row = torch.arange(scale.shape[0])
        n = first + row if interleave == 1 else first * 16 + row // 16 * 16 * interleave + row % 16
        begin = n // 64 * 64
        width = (outs - begin).clamp(max=64)
        at = (begin * blocks + n - begin)[:, None] + width[:, None] * torch.arange(blocks)
        self.scales[member][at] = scale


def norm_weight(n: int) -> Tensor:
    """[n rounded up to a multiple of 32] f32 zeros. The caller fills the first n."""
    return torch.zeros(padded(n, 32))
