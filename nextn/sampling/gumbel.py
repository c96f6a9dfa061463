"""Gumbel noise as a function of (seed, stream, position, token id): the same wherever it is asked for.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). Key: the seed's two
halves. Counter: (token id / 4, position, stream, use); the four words are those of four token ids. `use` is 0
for the one choice of `nextn.sampling.sampler`; nextn.sampling.draws has the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Ten rounds. Counters and keys: int64 tensors holding 32-bit words, broadcastable.
    Returns [..., 4] int64 words in [0, 2**32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # Below 2**64, so the low 64 bits of the int64 product are the product.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        hi0, hi1 = (p0 >> 32) & MASK, (p1 >> 32) & MASK
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, p1 & MASK, hi0 ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


Numbers = list[int] | Tensor  # a tensor: int64, on the device


def gumbel_noise(
    seeds: list[int] | tuple[Tensor, Tensor], streams: Numbers, positions: Numbers, vocab_size: int,
    device: torch.device, uses: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """[N, vocab_size] f32 standard Gumbel noise. seeds: or their low and high halves. uses: by default 0."""

    def column(values: Numbers) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=device)[:, None]

    halves = seeds if isinstance(seeds, tuple) else ([s & MASK for s in seeds], [s >> 32 for s in seeds])
    # Sixteen token ids at a time: rows stay whole vectors, so `log` has no tail that depends on the row.
    quarter = torch.arange(-(-vocab_size // 16) * 4, dtype=torch.int64, device=device)[None]
    use = column(uses) if uses else torch.zeros_like(quarter)
    words = philox((quarter, column(positions), column(streams), use), (column(halves[0]), column(halves[1])))
    return uniform(words).flatten(1).log_().neg_().log_().neg_().float()[:, :vocab_size]


def uniform(words: Tensor) -> Tensor:
    """f64 in (0, 1): in f32 the largest words would round to 1 and their noise to infinity."""
    return (words.double() + 0.5) * 2.0**-32
