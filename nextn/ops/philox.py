"""The random numbers of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11),
in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Ten rounds of Philox. Counters and keys: int64 tensors with 32-bit words, broadcastable. Returns
    [..., 4] int64 words in [0, 2**32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product is below 2**64, so int64 multiplication keeps all its bits.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        hi0, hi1 = (p0 >> 32) & MASK, (p1 >> 32) & MASK
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, p1 & MASK, hi0 ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


def uniform(words: Tensor) -> Tensor:
    """Words -> f64 in (0, 1). In f32 the largest words would round to 1, and their noise to infinity."""
    return (words.double() + 0.5) * 2.0**-32


def uniforms(
    seed_low: Tensor, seed_high: Tensor, stream: Tensor, position: Tensor, count: int,
    use: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[N, count] f64 in (0, 1). Arguments are [N] int64; use: by default 0. count: a multiple of 4.

    The key is the two halves of the seed. The counter is (i // 4, position, stream, use); its four words give
    columns i, ..., i + 3 for i a multiple of 4."""
    quarter = torch.arange(count // 4, dtype=torch.int64, device=position.device)[None]
    last = torch.zeros_like(quarter) if use is None else use[:, None]
    counter = quarter, position[:, None], stream[:, None], last
    return uniform(philox(counter, (seed_low[:, None], seed_high[:, None]))).flatten(1)
