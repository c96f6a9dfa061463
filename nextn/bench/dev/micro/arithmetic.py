"""Which arithmetic multiplies rows with a weight, and in what shares a kernel or a step uses each.

The native kernels have up to four: AMX tiles, dot products of bf16 pairs, f32 multiply-adds, dot products of
bytes. `NxWeight.way`
says which, or leaves it to the level of the kernels. Each has its own peak (csrc/peak.h), so the least time
of a product depends on it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from nextn.ops.cpu.coded import BLOCKS
from nextn.ops.cpu.interface import F32, WAYS, Weight

NATIVE = WAYS[1:]  # `which` of nx_peak is the index
TILES, PAIRS, FLOATS, BYTES = NATIVE
Shares = Mapping[str, float]  # of the operations, by the name of the arithmetic; their sum is 1


def of_torch(dtype: torch.dtype) -> str:
    """Torch's products, whose peak F.linear shows; those of weights of one byte are computed in bf16."""
    return "torch float32" if dtype is torch.float32 else "torch bfloat16"


def of_weight(weight: Weight, able: Sequence[str]) -> str:
    """able: what the kernels have, the level's own first (`NativePool.able`)."""
    if weight.kind == F32:
        return FLOATS
    if weight.way:
        return WAYS[int(weight.way)]
    # Few-bit codes are widened for vector registers, at the level with tiles too (csrc/coded_chains.h).
    return able[1] if able[0] == TILES and weight.kind in BLOCKS else able[0]


def shares(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """parts: (arithmetic, operations), of which any number may be of one arithmetic; some are not 0.

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
    """Operations/s at most of work that has these shares. peaks: operations/s of each arithmetic."""
    return 1 / sum(share / peaks[name] for name, share in parts.items())
