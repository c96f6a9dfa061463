"""The measurement finds sums that run in another order where there are fewer outputs or heads."""

from __future__ import annotations

import pytest
import torch
from support.sharing import ExactReference
from torch import Tensor

from nextn.ops.columns import heads_separable, outputs_separable

CPU = torch.device("cpu")
HALVES = (tuple(range(8)), tuple(range(8, 16)))


class Backwards(ExactReference):
    """Sums run the other way round where a result has fewer than `width` outputs, or than 4 heads."""

    width = 16

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if len(weight) < self.width:
            x, weight = x.flip(-1), weight.flip(-1)
        return super()._linear(x, weight)

    def _bmm(self, a: Tensor, b: Tensor) -> Tensor:
        return super()._bmm(a.flip(-1), b.flip(1)) if len(a) < 4 else super()._bmm(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n_in", [24, 65, 256])
def test_outputs(dtype: torch.dtype, n_in: int) -> None:
    assert outputs_separable(ExactReference(), 16, n_in, HALVES, dtype, CPU)
    assert outputs_separable(Backwards(), 16, n_in, (tuple(range(16)), ()), dtype, CPU)
    assert not outputs_separable(Backwards(), 16, n_in, HALVES, dtype, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("nope", "rank"), [(24, 32), (2, 33), (32, 2)])
def test_heads(dtype: torch.dtype, nope: int, rank: int) -> None:
    """Also where only one of the two products has an order."""
    sizes = nope, 4, 8, rank
    halves = (range(2), range(2, 4))
    assert heads_separable(ExactReference(), *sizes, halves, dtype, CPU)
    assert heads_separable(Backwards(), *sizes, (range(4), range(4, 4)), dtype, CPU)
    assert not heads_separable(Backwards(), *sizes, halves, dtype, CPU)
