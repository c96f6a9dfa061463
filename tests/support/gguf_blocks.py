"""Random blocks of GGUF's types with finite scales."""

from __future__ import annotations

import torch

from nextn.models.finite import HALVES
from nextn.ops.stored import Format, Stored

VALUES = {name: 256 if name.endswith("_K") else 32 for name in HALVES}  # values in a block


def random_stored(kind: str, n: int, k: int, seed: int = 0, scale: float = 0.01) -> Stored:
    """Random bytes, except the f16 scales, which have either sign and are about `scale`."""
    gen = torch.Generator().manual_seed(seed)
    size, halves = HALVES[kind]
    blocks = torch.randint(0, 256, (n * k // VALUES[kind], size), generator=gen, dtype=torch.uint8)
    for at in halves:
        halves_ = (scale * torch.randn(len(blocks), 1, generator=gen)).half()
        blocks[:, at : at + 2] = halves_.view(torch.uint8)
    return Stored(Format(kind, VALUES[kind]), (n, k), blocks.view(n, -1))
