"""The formats of weights that the native cases can have."""

from __future__ import annotations

from dataclasses import dataclass

from nextn.ops.cpu.coded import BLOCKS
from nextn.ops.cpu.interface import BF16, E4M3, INT4, INT8, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0


@dataclass(frozen=True)
class WeightFormat:
    """name: the name in results. kind: the kernels' code of the format. block: inputs for each scale, for
    kinds that do not fix it."""

    name: str
    kind: int
    block: int = 0

    def fits(self, n_in: int) -> bool:
        """Whether a matrix with n_in inputs can have this format. Few-bit kinds need whole blocks of
        inputs."""
        return self.kind not in BLOCKS or n_in % max(self.block, BLOCKS[self.kind]) == 0


BFLOAT16 = WeightFormat("bfloat16", BF16)
FORMATS = {  # by their names in --weight-format; blocks are those of published checkpoints
    "bf16": BFLOAT16,
    "e4m3": WeightFormat("float8_e4m3fn", E4M3, 128),
    "int8": WeightFormat("int8", INT8),
    "Q8_0": WeightFormat("Q8_0", Q8_0),
    "Q6_K": WeightFormat("Q6_K", Q6_K),
    "Q5_K": WeightFormat("Q5_K", Q5_K),
    "Q4_K": WeightFormat("Q4_K", Q4_K),
    "Q4_0": WeightFormat("Q4_0", Q4_0),
    "INT4": WeightFormat("INT4", INT4, 128),
}
