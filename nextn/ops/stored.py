"""Matrices as files store them in a few bits: what the readers of checkpoints give to models.

    Q4_0, Q8_0, Q4_K, Q5_K, Q6_K   blocks of a GGUF file, a row's one after another
    INT4                           codes of 4 bits with a scale for each group of inputs: compressed-tensors, GPTQ,
                                   AWQ, and what --quantization w4a16 makes

Models take over what they can compute from, and have the rest widened (`nextn.ops.widen`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

INT4 = "INT4"
BLOCKS = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


class Format(NamedTuple):
    """name: INT4, one of BLOCKS, or another type of GGUF. group: consecutive inputs of an output that share a
    scale. zeros: INT4 whose groups have a zero point each; without, it is 8."""

    name: str
    group: int
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Some rows of a matrix. shape: (outputs n, inputs k), k a multiple of the group (of a block, in GGUF).

    data: uint8. Of GGUF's types [n, bytes of a row], the file's bytes. Of INT4 [n, k / 2]: input j's code, 0 to 15,
    is in byte j / 2, in its low half where j is even.
    scale, zero: of INT4, [n, k / group], f32 and uint8: weight = scale * (code - zero).
    """

    format: Format
    shape: tuple[int, int]
    data: Tensor
    scale: Tensor | None = None
    zero: Tensor | None = None

    def rows(self, rows: range) -> Stored:
        """These of its rows."""
        some = slice(rows.start, rows.stop)
        scale = None if self.scale is None else self.scale[some]
        zero = None if self.zero is None else self.zero[some]
        return Stored(self.format, (len(rows), self.shape[1]), self.data[some], scale, zero)
