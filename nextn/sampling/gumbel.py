"""Gumbel noise as a function of (seed, stream, position, token id): the same wherever it is asked for.

From `nextn.ops.philox`, whose places are token ids. Its `use` is 0 for the one choice of
`nextn.sampling.sampler`; nextn.sampling.draws has the others.
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
    """How many uniform numbers the noise of so many token ids is made from: sixteen at a time, so that rows
    stay whole vectors and `log` has no tail that depends on the row."""
    return -(-vocab_size // 16) * 16


def gumbel(uniform: Tensor, vocab_size: int) -> Tensor:
    """[N, places(vocab_size)] f64, which is written over -> [N, vocab_size] f32."""
    return uniform.log_().neg_().log_().neg_().float()[:, :vocab_size]
