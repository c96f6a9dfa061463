"""The arithmetic that multiplies rows with a weight, and the share of each arithmetic in a kernel or a step.

The native kernels have up to four kinds: AMX tiles, dot products of bf16 pairs, f32 multiply-adds, and dot
products of bytes. `NxWeight.way` chooses one, or leaves the choice to the level of the kernels. Each has its
own peak (csrc/peak.h), so the minimum time of a product depends on it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from nextn.ops.cpu.coded import BLOCKS
from nextn.ops.cpu.interface import F32, WAYS, Weight

NATIVE = WAYS[1:]  # the index of a name is nx_peak's argument `which`
TILES, PAIRS, FLOATS, BYTES = NATIVE
Shares = Mapping[str, float]  # of the operations, by the name of the arithmetic; their sum is 1


def of_torch(dtype: torch.dtype) -> str:
    """The arithmetic of torch's products, whose peak F.linear shows. Products with one-byte weights are
    computed in bf16."""
    return "torch float32" if dtype is torch.float32 else "torch bfloat16"


def of_weight(weight: Weight, able: Sequence[str]) -> str:
    """The arithmetic of the native kernels for a weight. able: the kernels' arithmetic, the level's preferred
    one first (`NativePool.able`)."""
    if weight.kind == F32:
        return FLOATS
    if weight.way:
        return WAYS[int(weight.way)]
    # Few-bit codes are widened for vector registers, even at the level with tiles (csrc/coded_chains.h).
    return able[1] if able[0] == TILES and weight.kind in BLOCKS else able[0]


def shares(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The share of each arithmetic. parts: (arithmetic, operations); an arithmetic can come several times. At
    least one number of operations must not be 0.

    >>> shares([("AMX tiles", 6), ("f32 multiply-adds", 1), ("AMX tiles", 1)])
    {'AMX tiles': 0.875, 'f32 multiply-adds': 0.125}
    """
    found: dict[str, float] = {}
    for name, operations in parts:
        if operations:
            found[name] = found.get(name, 0.0) + operations
    total = sum(found.values())
    return {name: operations / total for name, operations in found.items()}


def peak(parts: Shares, peaks: Mapping[str, float]) -> float:
    """Maximum operations/s of work that has these shares. peaks: operations/s of each arithmetic."""
    return 1 / sum(share / peaks[name] for name, share in parts.items())
