"""Weights that are not in any cache: tensors cut from a block of memory several times the last cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nextn.bench.dev.micro.native_pool import large
from nextn.families.config import ModelConfig
from nextn.ops.base import align

LINE = 64  # bytes; every tensor begins at a multiple of it
PATTERN = 1 << 22  # bytes of random numbers, repeated over the block
MOST = 1024  # sets; more than the calls of a burst of the clock, which so reads no set twice


class Arena:
    """The block of memory. Its contents, read as bf16 or as f32, have no infinities and no denormals, which
    would slow the arithmetic down."""

    def __init__(self, size: int) -> None:
        gen = torch.Generator().manual_seed(0)
        numbers = torch.empty(min(size, PATTERN) // 2, dtype=torch.bfloat16)
        pattern = numbers.normal_(0, 0.02, generator=gen).view(torch.uint8)
        self.data = large(-(-size // pattern.nbytes) * pattern.nbytes)
        self.data.view(-1, pattern.nbytes).copy_(pattern)

    def sets(self, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[list[Tensor]]:
        """Cuts sets of tensors of these shapes, one after another: as many as fit, at most MOST. They overlap
        with the sets of other calls. Raises ValueError if the block is too small for one set."""
        sizes = [math.prod(shape) * dtype.itemsize for shape in shapes]
        steps = [align(size, LINE) for size in sizes]
        count = self.data.nbytes // sum(steps)
        if count == 0:
            raise ValueError(f"{self.data.nbytes} bytes are too few for {shapes} in {dtype}")
        found, at = [], 0
        for _ in range(min(count, MOST)):
            tensors = []
            for shape, size, step in zip(shapes, sizes, steps, strict=True):
                tensors.append(self.data[at : at + size].view(dtype).view(shape))
                at += step
            found.append(tensors)
        return found


def arena_bytes(cfg: ModelConfig, last_cache: int, least: int) -> int:
    """Size of an arena: eight times the last cache, and at least `least` and the model's largest weights of
    one layer in f32."""
    experts = 3 * cfg.n_routed_experts * cfg.moe_intermediate_size
    dense = max(cfg.vocab_size, 3 * cfg.intermediate_size, 2 * cfg.hidden_size)
    largest = 4 * cfg.hidden_size * max(experts, dense)
    return max(8 * last_cache, least, largest + 4 * LINE)
