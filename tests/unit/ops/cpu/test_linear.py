"""Packed products against f64, in every weight format and at every level.

Products of two bf16 are exact in f32, so what is left is the error of a chain of n f32 additions: at most
n * 2**-24 times the sum of the terms' sizes.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.native_kernels import SINGLE, Pool, at_level, built_levels, e4m3, linear
from torch import Tensor

from nextn.ops.cpu.interface import BF16, E4M3, F32, INT8
from nextn.ops.cpu.weights import PackedWeight

SHAPES = [(1, 1), (1, 2), (17, 3), (64, 64), (65, 33), (130, 200), (16, 515), (80, 1)]  # n_out, n_in
ROWS = (0, 1, 2, 5, 6, 7, 13, 100)


def random(*shape: int, seed: int = 0) -> Tensor:
    """[shape] f32 that bf16 holds."""
    gen = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=gen).bfloat16().float()


def packed(weight: Tensor, kind: int) -> tuple[PackedWeight, Tensor]:
    """The weight packed, and in f64 what it then means."""
    if kind == E4M3:
        return e4m3(weight, (128, 128))
    w = PackedWeight(*weight.shape, kind)
    w.place(weight)
    if kind == INT8:
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        return w, torch.round(weight / scale).double() * scale.double()
    return w, weight.double()


def assert_close(y: Tensor, x: Tensor, weight: Tensor) -> None:
    x = x.double()
    bound = (weight.shape[1] + 4) * SINGLE * (x.abs() @ weight.abs().T) + 1e-37
    assert ((y.double() - x @ weight.T).abs() <= bound).all()


@pytest.mark.parametrize("kind", [F32, BF16, E4M3, INT8], ids=["f32", "bf16", "e4m3", "int8"])
def test_against_f64(pool: Pool, kind: int) -> None:
    for shape in SHAPES:
        w, meant = packed(random(*shape), kind)
        for rows in ROWS:
            x = random(rows, shape[1], seed=rows)
            y = linear(pool, x, w)
            assert_close(y, x, meant)
            assert y.shape == (rows, shape[0])


def test_f32_rows_are_not_rounded(pool: Pool) -> None:
    x = torch.randn(9, 37, generator=torch.Generator().manual_seed(3))
    w, meant = packed(torch.randn(20, 37, generator=torch.Generator().manual_seed(4)), F32)
    assert_close(linear(pool, x, w), x, meant)


@pytest.mark.parametrize("block", [(128, 128), (1, 2), (3, 14), (64, 30), (50, 256), (7, 100)])
def test_e4m3_blocks(pool: Pool, block: tuple[int, int]) -> None:
    """Blocks that are partial at the edges, smaller than a pair of panels, wider than the matrix."""
    for shape in ((130, 200), (16, 129), (200, 257), (1, 5)):
        w, meant = e4m3(random(*shape), block)
        x = random(7, shape[1])
        assert_close(linear(pool, x, w), x, meant)


def test_every_e4m3_value_is_exact(pool: Pool) -> None:
    codes = torch.arange(256).to(torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]  # the two NaNs
    values = codes.view(torch.float8_e4m3fn)
    w = PackedWeight(len(values), 1, E4M3, block=2)
    w.place(values[:, None], scale=torch.ones(len(values), 1))
    assert torch.equal(linear(pool, torch.ones(1, 1), w)[0], values.float())


def test_every_int8_value_is_exact(pool: Pool) -> None:
    values = torch.arange(-127, 128).float()[None] / 4
    w = PackedWeight(1, 255, INT8)
    w.place(values)
    assert torch.equal(linear(pool, torch.eye(255), w)[:, 0], values[0])


def test_int8_error(pool: Pool) -> None:
    """Half a step of each weight at most: |y - y_f32| <= sum |x| * scale / 2."""
    weight, x = torch.randn(48, 300, generator=torch.Generator().manual_seed(5)), random(5, 300)
    w = PackedWeight(48, 300, INT8)
    w.place(weight)
    error = (linear(pool, x, w).double() - x.double() @ weight.double().T).abs()
    half_a_step = weight.double().abs().amax(1) / 254
    assert (error <= x.double().abs().sum(1, keepdim=True) * half_a_step * (1 + 1e-4)).all()
    assert error.max() > half_a_step.min(), "it is rounded at all"


def test_a_row_of_zeros_in_int8(pool: Pool) -> None:
    w = PackedWeight(3, 6, INT8)
    w.place(torch.zeros(3, 6))
    assert torch.equal(linear(pool, random(2, 6), w), torch.zeros(2, 3))


@pytest.mark.parametrize("kind", [F32, BF16, INT8], ids=["f32", "bf16", "int8"])
def test_several_parts_in_one(pool: Pool, kind: int) -> None:
    """Two matrices one above the other, the way q_a_proj and kv_a_proj_with_mqa share a product."""
    upper, lower, x = random(13, 40), random(70, 40), random(5, 40)
    both = PackedWeight(83, 40, kind)
    both.place(upper)
    both.place(lower, first=13)
    apart = torch.cat([linear(pool, x, packed(part, kind)[0]) for part in (upper, lower)], dim=1)
    assert torch.equal(linear(pool, x, both), apart)


def test_e4m3_parts_in_one(pool: Pool) -> None:
    upper, lower, x = random(13, 40), random(70, 40), random(5, 40)
    both = PackedWeight(83, 40, E4M3, block=16)
    parts = []
    for weight, first in ((upper, 0), (lower, 13)):
        scale = torch.rand(len(weight), 3, generator=torch.Generator().manual_seed(first)) + 0.5
        stored = weight.to(torch.float8_e4m3fn)
        both.place(stored, scale=scale, first=first)
        parts.append(stored.double() * scale.double().repeat_interleave(16, 1)[:, :40])
    assert_close(linear(pool, x, both), x, torch.cat(parts))


def test_transposed_and_members(pool: Pool) -> None:
    weights = [random(70, 9, seed=i) for i in range(3)]
    w = PackedWeight(70, 9, BF16, members=3)
    for i, weight in enumerate(weights):
        w.place(weight.T, member=i, transposed=True)
    x = random(4, 9)
    for weight in weights:
        assert_close(linear(pool, x, w), x, weight.double())
        w.struct.data += w.stride


def test_interleaved_halves(pool: Pool) -> None:
    """Gate and up projection take turns by 16 outputs; what is past a half's end is zero."""
    gate, up, x = random(37, 12, seed=1), random(37, 12, seed=2), random(3, 12)
    w = PackedWeight(96, 12, BF16)
    w.place(gate, first=0, interleave=2)
    w.place(up, first=1, interleave=2)
    y = linear(pool, x, w).view(3, 3, 2, 16)
    for side, weight in ((0, gate), (1, up)):
        flat = y[:, :, side].reshape(3, 48)
        assert_close(flat[:, :37], x, weight.double())
        assert not flat[:, 37:].any()


@pytest.mark.parametrize("kind", [F32, BF16, E4M3, INT8], ids=["f32", "bf16", "e4m3", "int8"])
def test_a_row_has_the_same_bits_in_any_company(level: str, kind: int) -> None:
    for shape in ((1, 2), (75, 129), (700, 66)):
        w, _ = packed(random(*shape), kind)
        x = random(300, shape[1])
        with Pool(1) as alone:
            rows = torch.cat([linear(alone, x[i : i + 1], w) for i in range(12)])
            for n in (2, 3, 7, 64, 300):
                for first in (0, 5):
                    at = 12 - first if n > 12 - first else n
                    y = linear(alone, x[first : first + n], w)
                    assert torch.equal(y[:at], rows[first : first + at])
            last = linear(alone, torch.cat((x[100:299], x[:1])), w)
            assert torch.equal(last[-1:], rows[:1])
            whole = linear(alone, x, w)
        for threads in (2, 5):
            with Pool(threads) as some:
                assert torch.equal(linear(some, x, w), whole)


@pytest.mark.parametrize("kind", [BF16, E4M3, INT8], ids=["bf16", "e4m3", "int8"])
@pytest.mark.parametrize(
    ("n_out", "n_in", "block"), [(16, 2, 2), (48, 33, 14), (64, 129, 40), (80, 66, 32), (130, 515, 128)]
)
def test_any_number_of_rows(level: str, kind: int, n_out: int, n_in: int, block: int) -> None:
    """1 to 130 rows, and more than are worked on at once; tiles that are not full in every direction."""
    weight = random(n_out, n_in)
    w = e4m3(weight, (64, block))[0] if kind == E4M3 else packed(weight, kind)[0]
    x = random(600, n_in)
    with Pool(1) as alone, Pool(2) as two:
        each = torch.cat([linear(alone, x[i : i + 1], w) for i in range(130)])
        for n in range(1, 131):
            assert torch.equal(linear(alone, x[130 - n : 130], w), each[130 - n :])
        for n in (255, 256, 257, 300, 600):
            for pool in (alone, two):
                assert torch.equal(linear(pool, x[:n], w)[:130], each)
        assert torch.equal(linear(two, x.flip(0), w).flip(0), linear(alone, x, w))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    rows=st.integers(1, 40),
    n_out=st.integers(1, 150),
    n_in=st.integers(1, 150),
    kind=st.sampled_from([F32, BF16, E4M3, INT8]),
    threads=st.sampled_from([1, 2, 5]),
    at=st.integers(0, 39),
    seed=st.integers(0, 3),
)
def test_any_shape(rows: int, n_out: int, n_in: int, kind: int, threads: int, at: int, seed: int) -> None:
    with at_level(built_levels()[seed % len(built_levels())]), Pool(threads) as pool:
        w, meant = packed(random(n_out, n_in, seed=seed), kind)
        x = random(rows, n_in, seed=seed)
        y = linear(pool, x, w)
        assert_close(y, x, meant)
        at %= rows
        assert torch.equal(linear(pool, x[at : at + 1], w)[0], y[at])
