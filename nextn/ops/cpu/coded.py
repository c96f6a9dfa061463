"""Few-bit weights for the native kernels (csrc/coded.h): which formats they can read, and how to pack them.

The caller widens matrices that the kernels cannot read, mostly because their inputs are not whole groups.
"""

from __future__ import annotations

import ctypes

import torch

from nextn.ops.cpu.interface import (
    BY_BYTES,
    INT4,
    INT4Z,
    INT8,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Weight,
)
from nextn.ops.cpu.library import library
from nextn.ops.stored import INT4 as INT4_NAME
from nextn.ops.stored import INT8 as INT8_NAME
from nextn.ops.stored import Format, Stored

KINDS = {
    "Q4_0": Q4_0, "Q4_1": Q4_1, "Q5_0": Q5_0, "Q5_1": Q5_1, "Q8_0": Q8_0,
    "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K,
}  # fmt: skip
BLOCKS = {  # inputs of a block; for INT4 the minimum
    INT4: 32, INT4Z: 32, Q4_0: 32, Q4_1: 32, Q5_0: 32, Q5_1: 32, Q8_0: 32, Q4_K: 256, Q5_K: 256, Q6_K: 256,
}  # fmt: skip
GROUPS = (128, 64, 32)  # possible numbers of inputs that share a scale of INT4
UNIT = 256.0  # INT4 scales are stored in f16, multiplied by this, so that small ones do not become 0


def kind_of(format: Format, n_in: int) -> int | None:
    """The kernels' kind for matrices of this format with n_in inputs; None if they cannot read them."""
    if format.name == INT8_NAME:
        return INT8
    if format.name == INT4_NAME:
        group = block_of(format.group)
        return None if not group or n_in % format.group else INT4Z if format.zeros else INT4
    kind = KINDS.get(format.name)
    return None if kind is None or n_in % BLOCKS[kind] else kind


def block_of(group: int) -> int:
    """Number of inputs per scale in the kernels, if the checkpoint has `group` inputs per scale. Larger
    groups are split. 0 if the kernels cannot read them."""
    return next((block for block in GROUPS if group > 0 and group % block == 0), 0)


def by_bytes(level: str) -> frozenset[int]:
    """The kinds of weights that the kernels at this level can multiply with 8-bit inputs."""
    able = library(level).nx_ways
    return frozenset(kind for kind in BLOCKS if able(kind) >> BY_BYTES & 1)


def place(stored: Stored, to: int, weight: Weight, first: int, interleave: int) -> None:
    """Packs rows into a weight of the same kind, whose panels begin at address `to`. Raises ValueError if a
    scale of INT4 is too large for f16."""
    rows, columns = stored.shape
    assert columns == weight.n_in, (stored.shape, weight.n_in)
    assert kind_of(stored.format, columns) == weight.kind, (stored.format, weight.kind)
    data = stored.data.contiguous()
    n_out, n_in, kind = int(weight.n_out), int(weight.n_in), int(weight.kind)
    if stored.format.name != INT4_NAME:
        library().nx_pack_blocks(data.data_ptr(), rows, to, n_out, n_in, kind, first, interleave)
        return
    assert stored.scale is not None
    block = int(weight.block)
    parts = columns // block // stored.scale.shape[1]
    scale = (stored.scale * UNIT).half().repeat_interleave(parts, 1).contiguous()
    if not bool(torch.isfinite(scale).all()) and bool(torch.isfinite(stored.scale).all()):
        raise ValueError(f"a scale of INT4 weights is not below {torch.finfo(torch.float16).max / UNIT:.0f}")
    zero = None if stored.zero is None else stored.zero.repeat_interleave(parts, 1).contiguous()
    zeros = ctypes.c_void_p(None if zero is None else zero.data_ptr())
    library().nx_pack_codes(
        data.data_ptr(), scale.data_ptr(), zeros, rows, to, n_out, n_in, kind, block, first, interleave
    )
