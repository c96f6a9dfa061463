"""Few-bit weights times inputs in 8 bits: against f64 of the rounded inputs, and to the bit in any company.

The machine needs AVX512-VNNI, and a level that has AVX-512.
"""

from __future__ import annotations

import pytest
import torch
from support.few_bits import BITS, CODED, packed
from support.native_kernels import Pool, at_level, built_levels, linear
from torch import Tensor

from nextn.ops.cpu.coded import BLOCKS, by_bytes
from nextn.ops.cpu.interface import BY_BYTES, INT4, INT4Z, KINDS, Q6_K, WAYS
from nextn.ops.cpu.library import library
from tests.unit.ops.cpu.test_coded import assert_close, random

LEVELS = [level for level in built_levels() if by_bytes(level)]
ROUNDED = [kind for kind in CODED if kind not in (INT4, INT4Z)]
every_kind = pytest.mark.parametrize("kind", ROUNDED, ids=[KINDS[kind] for kind in ROUNDED])
pytestmark = pytest.mark.skipif(not LEVELS, reason="no AVX512-VNNI here")


@pytest.fixture(params=LEVELS)
def pool(request):
    with at_level(request.param), Pool(threads=2) as pool:
        yield pool


def rounded(x: Tensor, kind: int) -> Tensor:
    """[rows, n] f64: each cell in whole steps of its largest value / 127."""
    cells = x.view(len(x), -1, 16 if kind == Q6_K else 32)
    most = cells.abs().amax(2, keepdim=True)
    each = torch.full_like(most, 127).div(most)  # `127 / most` is 127 times the reciprocal: rounded twice
    codes = torch.round(cells * torch.where(most > 0, each, 0.0))
    return (codes.double() * (most / 127).double()).view(x.shape)


def weight_of(kind: int, n_out: int, blocks: int):
    weight, meant = packed(kind, n_out, blocks * BLOCKS[kind])
    weight.struct.way = BY_BYTES
    return weight, meant


@every_kind
def test_against_f64_of_rounded_inputs(pool, kind):
    for n_out, blocks, rows in ((16, 1, 1), (48, 3, 7), (65, 2, 2), (112, 5, 13), (200, 1, 100), (64, 9, 5)):
        weight, meant = weight_of(kind, n_out, blocks)
        x = random(rows, blocks * BLOCKS[kind])
        assert_close(linear(pool, x, weight), rounded(x, kind), meant, BITS[kind])


@every_kind
def test_a_row_has_the_same_bits_in_any_company(pool, kind):
    weight, _ = weight_of(kind, 200, 3)
    x = random(131, 3 * BLOCKS[kind])
    whole = linear(pool, x, weight)
    for rows in (range(1), range(3, 9), range(40, 90), range(130, 131)):
        assert torch.equal(linear(pool, x[rows.start : rows.stop], weight), whole[rows.start : rows.stop])
    with Pool(threads=1) as other:
        assert torch.equal(linear(other, x, weight), whole)


@every_kind
def test_inputs_of_every_size(pool, kind):
    """A cell of zeros; one large value beside small ones; largest and smallest numbers."""
    weight, meant = weight_of(kind, 32, 2)
    n = 2 * BLOCKS[kind]
    x = random(6, n)
    x[0, :32] = 0
    x[1] = 0
    x[2, 5] = 1000
    x[3] *= 2.0**60
    x[4] *= 2.0**-60
    x[5] = -1.0
    y = linear(pool, x, weight)
    assert_close(y, rounded(x, kind), meant, BITS[kind])
    assert not y[1].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_gives_no_number(pool, value):
    for kind in ROUNDED:
        weight, _ = weight_of(kind, 48, 2)
        x = random(3, 2 * BLOCKS[kind])
        before = linear(pool, x, weight)
        x[1, 7] = value
        y = linear(pool, x, weight)
        assert not torch.isfinite(y[1]).any()
        assert torch.equal(y[[0, 2]], before[[0, 2]])


def test_which_kinds_have_it():
    for level in LEVELS:
        assert by_bytes(level) == frozenset(ROUNDED)
        assert not library(level).nx_ways(INT4) >> BY_BYTES & 1
    assert WAYS[BY_BYTES] == "dot products of bytes"
