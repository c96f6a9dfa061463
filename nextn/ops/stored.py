"""Matrices in a few bits, as files store them. Checkpoint readers pass them to models in this form.

    Q4_0, Q8_0, Q4_K, ...   blocks of a GGUF file, those of a row one after another
    INT4                    codes of 4 bits with a scale for each group of inputs: compressed-tensors, GPTQ,
                            AWQ, and the result of --quantization w4a16

Models keep the formats that they can compute from, and have others widened (`nextn.ops.widen`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FP8 = "F8_E4M3"  # e4m3 blocks: not `Stored`, but a tensor and a tensor of scales
INT4 = "INT4"
INT8 = "INT8"  # result of --quantization w8a16: a scale for each output. No file has it
BLOCKS = {  # bits of a weight without its scales
    "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8,
    "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6,
}  # fmt: skip
FEW_BITS = {INT4: 4, **BLOCKS}


class Format(NamedTuple):
    """name: FP8, INT4, INT8, or one of BLOCKS. group: consecutive inputs of an output that share a scale.
    zeros: whether INT4 has a zero point for each group; otherwise all zero points are 8."""

    name: str
    group: int
    zeros: bool = False

    @property
    def bits(self) -> int:
        """Bits of a weight, without its scales."""
        return FEW_BITS.get(self.name, 8)


W8A16 = Format(INT8, 0)


@dataclass(frozen=True, slots=True)
class Stored:
    """Some rows of a matrix. shape: (outputs n, inputs k), k a multiple of the group (of GGUF's block).

    data: uint8. For GGUF's types [n, bytes of a row], the file's bytes. For INT4 [n, k / 2]: input j's code,
    0 to 15, is in byte j // 2, in the low half if j is even.
    scale, zero: for INT4, [n, k / group], f32 and uint8: weight = scale * (code - zero).
    """

    format: Format
    shape: tuple[int, int]
    data: Tensor
    scale: Tensor | None = None
    zero: Tensor | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return math.prod(self.shape)

    def rows(self, rows: range) -> Stored:
        """The matrix of these rows."""
        return self._some(slice(rows.start, rows.stop), len(rows))

    def take(self, rows: Sequence[int]) -> Stored:
        """The matrix of the rows with these indices, in this order."""
        return self._some(torch.tensor(rows, dtype=torch.long), len(rows))

    def _some(self, rows: slice | Tensor, count: int) -> Stored:
        scale = None if self.scale is None else self.scale[rows]
        zero = None if self.zero is None else self.zero[rows]
        return Stored(self.format, (count, self.shape[1]), self.data[rows], scale, zero)
