"""RMS norm against f64, also where a row's width is no multiple of a vector's."""

from __future__ import annotations

import pytest
import torch
from support.native_kernels import SINGLE, norm


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 48, 100, 1500])
def test_against_f64(level: str, n: int) -> None:
    gen = torch.Generator().manual_seed(n)
    x = torch.randn(6, n, generator=gen) * torch.tensor([1e-4, 0.1, 1.0, 3.0, 50.0, 1e4])[:, None]
    weight = torch.rand(n, generator=gen) + 0.5
    for eps in (1e-6, 1e-3):
        wide = x.double()
        want = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()
        # A sum of squares in 32 chains, a tree over them, and a handful of roundings.
        bound = (n / 32 + 16) * SINGLE
        assert ((norm(x, weight, eps).double() - want).abs() <= bound * want.abs()).all()


def test_zeros(level: str) -> None:
    assert torch.equal(norm(torch.zeros(2, 40), torch.ones(40), 1e-6), torch.zeros(2, 40))
