"""Do outputs have the same bits when a device computes some of them only? Measured once, at start-up, for ops
whose `exact_columns` is False: a BLAS chooses its loops by the width of the result too.

parts: of each device, the outputs (or heads) that it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from nextn.ops.base import Ops

COUNTS = (8, 16, 24, 72, 264)  # rows of the batches that are compared


@cache
def outputs_separable(
    ops: Ops,
    n_out: int,
    n_in: int,
    parts: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Of `ops.linear` with a weight [n_out, n_in]."""
    rand = _random(dtype, device)
    weight, x = rand(n_out, n_in), rand(COUNTS[-1], n_in)
    rows = [torch.tensor(part, dtype=torch.long, device=device) for part in parts]
    some = [weight[part] for part in rows]
    for n in COUNTS:
        whole = ops.linear(x[:n], weight)
        if not all(torch.equal(ops.linear(x[:n], w), whole[:, p]) for p, w in zip(rows, some, strict=True)):
            return False
    return True


@cache
def heads_separable(
    ops: Ops,
    nope: int,
    rope: int,
    value: int,
    rank: int,
    parts: tuple[range, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Of `ops.absorb` and `ops.heads_matmul` with the two weights of absorbed attention, which lie in one
    [heads, nope + value, rank]."""
    rand, heads, most = _random(dtype, device), parts[-1].stop, COUNTS[-1]
    kv_up, q, mixed = rand(heads, nope + value, rank), rand(most, heads, nope + rope), rand(most, heads, rank)
    cos, sin = (rand(most, rope // 2).float() for _ in range(2))

    def products(n: int, part: slice) -> Sequence[Tensor]:
        weight = kv_up[part].clone()
        key_up, value_up = weight[:, :nope], weight[:, nope:].transpose(1, 2)
        return (
            ops.absorb(q[:n, part].contiguous(), key_up, cos[:n], sin[:n], 0.3),
            ops.heads_matmul(mixed[:n, part].contiguous(), value_up),
        )

    for n in COUNTS:
        whole = products(n, slice(None))
        for part in parts:
            some = slice(part.start, part.stop)
            if not all(torch.equal(p, w[:, some]) for p, w in zip(products(n, some), whole, strict=True)):
                return False
    return True


def _random(dtype: torch.dtype, device: torch.device) -> Callable[..., Tensor]:
    gen = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=gen).to(device, dtype)
