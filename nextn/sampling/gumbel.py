"""Gumbel noise as a function of (seed, stream, position, token id), and of nothing else.

It is made from the random numbers of `nextn.ops.philox`, one for each token id. Their `use` is 0 for the
choices of `nextn.sampling.sampler`; `nextn.sampling.draws` has the other values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.philox import MASK, uniforms


def gumbel_noise(
    seeds: list[int], streams: list[int], positions: list[int], vocab_size: int, device: torch.device,
    uses: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """[N, vocab_size] f32 standard Gumbel noise. uses: by default 0."""

    def on(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    key = on([s & MASK for s in seeds]), on([s >> 32 for s in seeds])
    use = on(uses) if uses else None
    return gumbel(uniforms(*key, on(streams), on(positions), places(vocab_size), use), vocab_size)


def places(vocab_size: int) -> int:
    """Number of uniform random numbers for this vocabulary: a multiple of sixteen, so that every row is whole
    vectors, and `log` treats all its elements in the same way."""
    return -(-vocab_size // 16) * 16


def gumbel(uniform: Tensor, vocab_size: int) -> Tensor:
    """[N, places(vocab_size)] f64, which is overwritten -> [N, vocab_size] f32."""
    return uniform.log_().neg_().log_().neg_().float()[:, :vocab_size]
