"""Rows rounded to e4m3: what a rounded number is, and the same bits from the native kernels and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_kernels import built_levels
from torch import Tensor

from nextn.ops.cpu.library import library
from nextn.ops.fp8_rows import BLOCK, pack, packed_bytes, rounded, unpack

LEVELS = built_levels()


def e4m3() -> Tensor:
    """Its numbers from 0 to 448, by the format's definition."""
    sizes = [(m + 8 * (e > 0)) / 8 * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)]
    return torch.tensor(sizes[:-1], dtype=torch.float64)  # the last code is NaN


def nearest(block: Tensor) -> Tensor:
    """A block of finite f32, rounded by its definition in f64: searched among all numbers."""
    values, grid = block.double(), e4m3()
    scale = 2.0 ** max(-117, math.frexp(values.abs().max())[1] - 12)
    while values.abs().max() > 448 * scale:
        scale *= 2
    far = (values.abs()[:, None] / scale - grid).abs()
    # Of two as near the one with an even code.
    best = (far == far.amin(1, keepdim=True)).double() * (2 - torch.arange(len(grid)) % 2)
    return (grid[best.argmax(1)] * scale).copysign(values).float()


def rows_of(seed: int, rows: int, n: int) -> Tensor:
    """bf16 of many sizes: also zero rows, denormals, numbers halfway between two, and the largest."""
    gen = np.random.default_rng(seed)
    x = gen.standard_normal((rows, n)) * 2.0 ** gen.integers(-8, 8, (rows, n))
    x *= 2.0 ** gen.choice([-133, -126, -118, -40, 0, 0, 0, 60], (rows, 1))
    x[gen.random((rows, n)) < 0.1] = 0
    found = torch.from_numpy(x).bfloat16()
    found[0] = 0
    found[-1, : min(n, 3)] = torch.tensor([3.2e38, -3.2e38, 1e-40])[:n].bfloat16()
    return found


@settings(max_examples=25, derandomize=True, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 5), n=st.sampled_from([1, 33, 128, 250, 384]))
def test_the_nearest_number_of_each_block(seed: int, rows: int, n: int) -> None:
    x = rows_of(seed, rows, n)
    want = torch.cat([torch.stack([nearest(row) for row in part]) for part in x.split(BLOCK, dim=1)], dim=1)
    found = rounded(x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.view(torch.int16), want.bfloat16().view(torch.int16))
    assert torch.equal(rounded(x.float()), want)
    assert torch.equal(rounded(found), found)  # again changes nothing
    packed = pack(x)
    assert packed.shape == (rows, packed_bytes(n))
    assert torch.equal(unpack(packed, n, torch.bfloat16), found)
    assert torch.equal(unpack(pack(found), n, torch.bfloat16), found)


def test_what_a_row_looks_like() -> None:
    """Beside a large input, one a million times smaller is lost."""
    x = torch.tensor([[448.0, 1.0, 1.0625, -0.3, 2.0**-10, 2.0**-9, 450.0]])
    assert rounded(x)[:, :6].tolist() == [[448.0, 1.0, 1.0, -0.3125, 0.0, 0.0]]
    assert rounded(x[:, :6]).tolist() == [[448.0, 1.0, 1.0, -0.3125, 0.0, 2.0**-9]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_input_spoils_its_block_alone(bad: float) -> None:
    x = torch.ones(2, 300)
    x[1, 140] = bad
    found = rounded(x)
    assert found[1, 128:256].isnan().all()
    found[1, 128:256] = 1
    assert (found == 1).all()


@pytest.mark.parametrize("level", LEVELS)
def test_native_kernels_have_the_same_bits(level: str) -> None:
    kernels = library(level)
    for n in (1, 33, 128, 250, 1024):
        x = torch.cat([rows_of(seed, 6, n) for seed in range(8)])
        x[3, n // 2], x[4, -1], x[5, 0] = float("nan"), float("inf"), -float("inf")
        assert kernels.nx_fp8_row_bytes(n) == packed_bytes(n)
        packed = torch.zeros(len(x), packed_bytes(n), dtype=torch.uint8)
        kernels.nx_fp8_encode(x.data_ptr(), len(x), n, packed.data_ptr())
        assert torch.equal(packed, pack(x))
        found = torch.zeros_like(x)
        kernels.nx_fp8_decode(packed.data_ptr(), len(x), n, found.data_ptr())
        want = rounded(x)
        assert want.isnan().any()
        bits = [t.view(torch.int16).masked_fill(t.isnan(), -1) for t in (found, want)]
        assert torch.equal(*bits)


def test_every_number_of_bf16() -> None:
    """Each alone in its row, so that every exponent is a scale's."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)[:, None]
    kernels, packed = library(), torch.zeros(1 << 16, 5, dtype=torch.uint8)
    kernels.nx_fp8_encode(every.data_ptr(), 1 << 16, 1, packed.data_ptr())
    assert torch.equal(packed, pack(every))
    found = rounded(every).double()
    small = every.double().abs() < 2.0**128 * 31 / 32  # from there on the nearest is 2**128
    assert torch.equal(found.isnan(), ~small)
    off = (found - every.double()).abs()
    assert (off <= (every.double().abs() / 16).clamp(min=2.0**-127))[small].all()
