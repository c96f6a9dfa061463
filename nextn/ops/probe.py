"""Measures which matrix products are row-invariant on this machine: once at start-up, within a second.

With MKL, for example, a row's bits do not depend on the number of rows, if that is a multiple of 8. But for
very narrow results they depend on the row's index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.ops.base import ROW_ALIGN

# direct: one product for all rows. blocks: products of ROW_ALIGN rows. sums: elementwise products, summed.
Mode = Literal["direct", "blocks", "sums"]
Shape = tuple[int, int]  # (n_out, n_in) of a weight
OPERATIONS = 1 << 27  # maximum multiply-adds of a probe; of wider weights, the first columns are probed


def product_modes(shapes: Iterable[Shape], dtype: torch.dtype, device: torch.device) -> Mapping[Shape, Mode]:
    """The cheapest row-invariant mode of every shape: with `F.linear` and with `torch.bmm`, a row has the
    same bits at any index in a batch of any aligned size. Each shape is measured once per process, for each
    number of threads."""
    threads = torch.get_num_threads()
    return {shape: _mode(shape, dtype, device, threads) for shape in sorted(set(shapes))}


@functools.cache
def _mode(shape: Shape, dtype: torch.dtype, device: torch.device, threads: int) -> Mode:
    """threads: those that torch uses now."""
    (n_out, n_in), gen = shape, torch.Generator().manual_seed(0)
    probed = max(1, min(n_out, OPERATIONS // (256 * n_in)))
    weight = torch.randn(probed, n_in, generator=gen).to(device, dtype)
    x = torch.randn(264, n_in, generator=gen).to(device, dtype)
    if _invariant(x, weight, (8, 16, 24, 72, 256)):
        return "direct"
    return "blocks" if _invariant(x, weight, (8,)) else "sums"


def _invariant(x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> bool:
    rows = torch.stack([weight.t()] * 3)  # [3, n_in, n_out]
    columns = torch.stack([weight] * 3).transpose(1, 2)  # the same with the strides of a transposed weight
    products: list[Callable[[Tensor], Tensor]] = [
        lambda a: F.linear(a, weight),
        lambda a: torch.bmm(a.expand(3, -1, -1), rows)[2],
        lambda a: torch.bmm(a.expand(3, -1, -1), columns)[2],
    ]
    for product in products:
        want = torch.cat([product(part) for part in x.split(ROW_ALIGN)])
        same = product(x[:1].expand(ROW_ALIGN, -1).contiguous())
        if not torch.equal(same, want[:1].expand_as(same)):
            return False
        for n in sizes:
            for start in (0, 1, 3, 6) if n <= 16 else (5,):
                if not torch.equal(product(x[start : start + n]), want[start : start + n]):
                    return False
    return True
