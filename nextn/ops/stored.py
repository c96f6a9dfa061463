"""Matrices as files store them in a few bits: what the readers of checkpoints give to models.

    Q4_0, Q8_0, Q4_K, ...   blocks of a GGUF file, a row's one after another
    INT4                    codes of 4 bits with a scale for each group of inputs: compressed-tensors, GPTQ,
                            AWQ, and what --quantization w4a16 makes

Models take over what they can compute from, and have the rest widened (`nextn.ops.widen`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FP8 = "F8_E4M3"  # blocks that are not `Stored`: a tensor and one of scales
INT4 = "INT4"
INT8 = "INT8"  # what --quantization w8a16 makes: a scale for each output; in no file
BLOCKS = {  # bits of a weight without its scales
    "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8,
    "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6,
}  # fmt: skip
FEW_BITS = {INT4: 4, **BLOCKS}


class Format(NamedTuple):
    """name: FP8, INT4, INT8, or one of BLOCKS. group: consecutive inputs of an output that share a scale.
    zeros: INT4 whose groups have a zero point each; without, it is 8."""

    name: str
    group: int
    zeros: bool = False

    @property
    def bits(self) -> int:
        """Of a weight, without its scales."""
        return FEW_BITS.get(self.name, 8)


W8A16 = Format(INT8, 0)


@dataclass(frozen=True, slots=True)
class Stored:
    """Some rows of a matrix. shape: (outputs n, inputs k), k a multiple of the group (of GGUF's block).

    data: uint8. Of GGUF's types [n, bytes of a row], the file's bytes. Of INT4 [n, k / 2]: input j's code, 0
    to 15, is in byte j / 2, in its low half where j is even.
    scale, zero: of INT4, [n, k / group], f32 and uint8: weight = scale * (code - zero).
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
        """These of its rows."""
        return self._some(slice(rows.start, rows.stop), len(rows))

    def take(self, rows: Sequence[int]) -> Stored:
        """Its rows with these numbers, in this order."""
        return self._some(torch.tensor(rows, dtype=torch.long), len(rows))

    def _some(self, rows: slice | Tensor, count: int) -> Stored:
        scale = None if self.scale is None else self.scale[rows]
        zero = None if self.zero is None else self.zero[rows]
        return Stored(self.format, (count, self.shape[1]), self.data[rows], scale, zero)
