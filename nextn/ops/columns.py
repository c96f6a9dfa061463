"""Measures whether outputs have the same bits if each device computes only some of them. This is done once,
at start-up, for ops whose `exact_columns` is False: a BLAS chooses its loops by the width of the result too.

parts: for each device, the outputs (or heads) that it computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.ops.base import Ops

COUNTS = (8, 16, 24, 72, 264)  # rows of the batches that are compared


def outputs_separable(
    ops: Ops,
    n_out: int,
    n_in: int,
    parts: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Whether `ops.linear` with a weight [n_out, n_in] has the same bits in parts."""
    terms = _Terms(n_in)
    weight, x = (t.to(device, dtype) for t in (terms.weights(n_out), terms.inputs(COUNTS[-1])))
    rows = [torch.tensor(list(part), dtype=torch.long, device=device) for part in parts]
    some = [weight[part] for part in rows]
    for n in COUNTS:
        whole = ops.linear(x[:n], weight)
        if not all(torch.equal(ops.linear(x[:n], w), whole[:, p]) for p, w in zip(rows, some, strict=True)):
            return False
    return True


def heads_separable(
    ops: Ops,
    nope: int,
    rope: int,
    value: int,
    rank: int,
    parts: Sequence[range],
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Whether `ops.absorb` and `ops.heads_matmul` have the same bits in parts. Their weights are the two of
    absorbed attention, in one tensor [heads, nope + value, rank]."""
    heads, most, keys, values = parts[-1].stop, COUNTS[-1], _Terms(nope), _Terms(rank)
    gen = keys.gen
    rotated = torch.randn(most, heads, rope, generator=gen)
    cos, sin = (torch.randn(most, rope // 2, generator=gen).to(device) for _ in range(2))
    kv_up, q, mixed = (
        t.to(device, dtype)
        for t in (
            torch.cat((keys.weights(heads, rank).transpose(1, 2), values.weights(heads, value)), dim=1),
            torch.cat((keys.inputs(most, heads), rotated), dim=-1),
            values.inputs(most, heads),
        )
    )

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


class _Terms:
    """Random inputs and weights [..., n] whose products cancel in pairs. So a sum consists of rounding errors
    only. It shows the order of additions even in bf16, whose few bits hide this order in other sums."""

    def __init__(self, n: int) -> None:
        self.n, self.gen = n, torch.Generator().manual_seed(0)
        self.first, self.second = torch.randperm(n, generator=self.gen)[: n // 2 * 2].view(2, -1)
        self.scale = 2.0 ** torch.randint(-6, 7, self.first.shape, generator=self.gen)

    def inputs(self, *shape: int) -> Tensor:
        return self._random(shape, 1.0)

    def weights(self, *shape: int) -> Tensor:
        return self._random(shape, -1.0)

    def _random(self, shape: tuple[int, ...], sign: float) -> Tensor:
        found = torch.zeros(*shape, self.n)
        some = torch.randn(*shape, len(self.first), generator=self.gen) * self.scale
        found[..., self.first], found[..., self.second] = some, sign * some
        return found
