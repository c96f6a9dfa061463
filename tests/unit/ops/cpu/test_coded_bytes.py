"""Few-bit weights times inputs in 8 bits: bit by bit as defined here, in any company.

A cell is the inputs of an output that share a scale. Its sum of products of integers is exact. It is scaled
and added to the cells before it in f32. The machine needs AVX2 and that level, or AVX512-VNNI and a level
that has AVX-512.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.few_bits import BITS, CODED, GGUF_BYTES, HALVES, Parts, packed, parts
from support.native_kernels import Pool, at_level, built_levels, linear
from torch import Tensor

from nextn.ops.cpu.coded import BLOCKS, by_bytes
from nextn.ops.cpu.interface import BY_BYTES, INT4, INT4Z, KINDS, Q6_K, WAYS
from nextn.ops.cpu.library import library
from nextn.ops.cpu.weights import PackedWeight
from nextn.ops.stored import Format, Stored
from tests.unit.ops.cpu.test_coded import assert_close, random

LEVELS = [level for level in built_levels() if by_bytes(level)]
ROUNDED = [kind for kind in CODED if kind not in (INT4, INT4Z)]
LEAST = 1e-36  # a cell whose inputs are all smaller counts as zeros
every_kind = pytest.mark.parametrize("kind", ROUNDED, ids=[KINDS[kind] for kind in ROUNDED])
pytestmark = pytest.mark.skipif(not LEVELS, reason="neither AVX2 nor AVX512-VNNI here")
Long = NDArray[np.longdouble]  # 64 bits of mantissa: products of f32 are exact


@pytest.fixture(params=LEVELS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with at_level(request.param), Pool(threads=2) as pool:
        yield pool


def rounded(x: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """x [rows, n] f32 -> (integers from -127 to 127 [rows, cells, inputs], scales [rows, cells] f32)."""
    cells = x.view(len(x), -1, 16 if kind == Q6_K else 32)
    most = cells.abs().amax(2, keepdim=True)
    each = torch.full_like(most, 127).div(most)  # `127 / most` is 127 times the reciprocal: rounded twice
    codes = torch.where(most > LEAST, torch.round(cells * each), 0.0)
    return codes, (most / 127)[..., 0]


def meant_inputs(x: Tensor, kind: int) -> Tensor:
    """[rows, n] f64: the rounded inputs."""
    codes, scale = rounded(x, kind)
    return (codes.double() * scale.double()[..., None]).view(x.shape)


def fused(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[np.float32]:
    """a * b + c, rounded to f32 once."""
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


def defined(x: Tensor, kind: int, meant: Parts) -> Tensor:
    """[rows, n_out] f32: the definition of the product. The scales and minimums of all kinds are f32
    exactly."""
    codes, scale = rounded(x, kind)
    inputs = codes.shape[2]
    total = np.zeros((len(x), len(meant.code)), np.float32)
    for c in range(codes.shape[1]):
        at = slice(c * inputs, (c + 1) * inputs)
        whole = (codes[:, c].double() @ meant.code[:, at].T).numpy().astype(np.float32)
        own = scale[:, c, None].numpy()
        with np.errstate(all="ignore"):
            total = fused(whole * meant.scale[:, at.start].numpy().astype(np.float32), own, total)
            if meant.min.any():
                sums = own * codes[:, c].sum(1, keepdim=True).numpy()
                total = fused(-meant.min[:, at.start].numpy().astype(np.float32), sums, total)
    return torch.from_numpy(total)


def assert_as_defined(pool: Pool, x: Tensor, kind: int, weight: PackedWeight, meant: Parts) -> None:
    y, want = linear(pool, x, weight), defined(x, kind, meant)
    assert torch.equal(y, want), (y - want).abs().max()


def weight_of(kind: int, n_out: int, blocks: int) -> tuple[PackedWeight, Parts]:
    weight, meant = packed(kind, n_out, blocks * BLOCKS[kind])
    weight.struct.way = BY_BYTES
    return weight, meant


def stored_weight(stored: Stored, kind: int) -> tuple[PackedWeight, Parts]:
    weight = PackedWeight(*stored.shape, kind)
    weight.place(stored)
    weight.struct.way = BY_BYTES
    return weight, parts(kind, stored)


@every_kind
def test_bits_are_those_of_the_definition(pool: Pool, kind: int) -> None:
    """Panels of every width; rows of which the kernel has special cases, and more than it takes at once."""
    for n_out, blocks in ((16, 1), (48, 3), (65, 2), (112, 5), (200, 1), (64, 9)):
        weight, meant = weight_of(kind, n_out, blocks)
        for rows in (1, 2, 3, 4, 5, 6, 7, 13, 48, 49, 100) if n_out in (48, 65) else (1, 7):
            assert_as_defined(pool, random(rows, blocks * BLOCKS[kind]), kind, weight, meant)


@every_kind
def test_the_definition_is_close_to_f64(kind: int) -> None:
    _, meant = weight_of(kind, 65, 3)
    x = random(7, 3 * BLOCKS[kind])
    assert_close(defined(x, kind, meant), meant_inputs(x, kind), meant, BITS[kind])


@every_kind
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_the_largest_sums(pool: Pool, kind: int, byte: int) -> None:
    """All codes are extremes, and all inputs 127 steps up or down: no sum within a cell may overflow."""
    n_in = 2 * BLOCKS[kind]
    data = torch.full((48, n_in // BLOCKS[kind], GGUF_BYTES[kind]), byte, dtype=torch.uint8)
    for at in HALVES[kind]:
        data[:, :, at : at + 2] = torch.tensor([0.5]).half().view(torch.uint8)
    weight, meant = stored_weight(Stored(Format(KINDS[kind], 0), (48, n_in), data.view(48, -1)), kind)
    at = torch.arange(n_in)
    signs = [at >= 0, at < 0, at % 2 == 0, at % 2 == 1, at % 4 < 2, at % 8 < 4, at % 32 < 16, at % 3 == 0]
    x = torch.stack([torch.where(up, 1.5, -1.5) for up in signs])
    for rows in (len(x), 1):
        assert_as_defined(pool, x[:rows], kind, weight, meant)
        assert_as_defined(pool, -x[:rows], kind, weight, meant)


@every_kind
@pytest.mark.parametrize("scale", [0.0, 2.0**-24, -(2.0**-24), 65504.0])
def test_scales_of_every_size(pool: Pool, kind: int, scale: float) -> None:
    """Zero, the smallest and the largest f16."""
    gen = torch.Generator().manual_seed(kind)
    data = torch.randint(0, 256, (32, 2, GGUF_BYTES[kind]), dtype=torch.uint8, generator=gen)
    for at in HALVES[kind]:
        data[:, :, at : at + 2] = torch.tensor([scale]).half().view(torch.uint8)
    n_in = 2 * BLOCKS[kind]
    weight, meant = stored_weight(Stored(Format(KINDS[kind], 0), (32, n_in), data.view(32, -1)), kind)
    assert_as_defined(pool, random(5, n_in), kind, weight, meant)


@every_kind
def test_a_row_has_the_same_bits_in_any_company(pool: Pool, kind: int) -> None:
    """Any number of rows and threads."""
    weight, _ = weight_of(kind, 200, 3)
    x = random(131, 3 * BLOCKS[kind])
    whole = linear(pool, x, weight)
    for first, counts in ((0, range(1, 14)), (3, (6, 47, 48, 49)), (40, (50, 90)), (130, (1,))):
        for rows in counts:
            assert torch.equal(linear(pool, x[first : first + rows], weight), whole[first : first + rows])
    for threads in (1, 5):
        with Pool(threads) as other:
            assert torch.equal(linear(other, x, weight), whole)
            assert torch.equal(linear(other, x[7:8], weight), whole[7:8])


@every_kind
def test_inputs_of_every_size(pool: Pool, kind: int) -> None:
    """A cell of zeros; one large value beside small ones; largest, smallest and denormal numbers."""
    weight, meant = weight_of(kind, 32, 2)
    n = 2 * BLOCKS[kind]
    x = random(9, n)
    x[0, :32] = 0
    x[1] = 0
    x[2, 5] = 1000
    x[3] *= 2.0**60
    x[4] *= 2.0**-60
    x[5] = -1.0
    x[6] = (x[6] * 2.0**-118).bfloat16().float()  # some cells count as zeros
    x[7] = (x[7] * 2.0**-128).bfloat16().float()  # denormal
    x[8] = 3.0e38
    x[8, ::2] = -x[8, ::2]
    assert x[7].any()
    x = x.bfloat16().float()
    y = linear(pool, x, weight)
    want = defined(x, kind, meant)
    assert torch.equal(y[:8], want[:8])
    assert torch.equal(y[8].nan_to_num(0), want[8].nan_to_num(0)), "the largest can overflow in both"
    assert not y[1].any()
    assert not y[7].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_gives_no_number(pool: Pool, value: float) -> None:
    for kind in ROUNDED:
        weight, _ = weight_of(kind, 48, 2)
        x = random(3, 2 * BLOCKS[kind])
        before = linear(pool, x, weight)
        x[1, 7] = value
        y = linear(pool, x, weight)
        assert not torch.isfinite(y[1]).any()
        assert torch.equal(y[[0, 2]], before[[0, 2]])


def test_which_kinds_have_it() -> None:
    for level in LEVELS:
        assert by_bytes(level) == frozenset(ROUNDED)
        assert not library(level).nx_ways(INT4) >> BY_BYTES & 1
    assert "avx2" in LEVELS or "avx2" not in built_levels()
    assert WAYS[BY_BYTES] == "dot products of bytes"
