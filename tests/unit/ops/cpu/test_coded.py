"""Products with few-bit weights against f64, in every format, at every level and in every way that it offers.

A kernel multiplies rows with codes that are up to 3 * 2**bits too large, and takes off again what is too
much. So the error of n f32 additions is at most n * 2**-24 times the sum of the sizes of those larger terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.few_bits import BITS, CODED, HALVES, Parts, packed, parts, random_stored
from support.native_kernels import SINGLE, Pool, at_level, built_levels, linear
from torch import Tensor

from nextn.ops.cpu.coded import BLOCKS
from nextn.ops.cpu.interface import BY_BYTES, INT4, INT4Z, KINDS, WAYS, Weight
from nextn.ops.cpu.library import library
from nextn.ops.cpu.weights import PackedWeight
from nextn.ops.stored import INT4 as INT4_NAME
from nextn.ops.stored import Format, Stored
from nextn.ops.widen import widened

OUTPUTS = (1, 16, 48, 64, 65, 80, 112, 200)
ROWS = (0, 1, 2, 5, 6, 7, 13, 100)
every_kind = pytest.mark.parametrize("kind", CODED, ids=[KINDS[kind] for kind in CODED])


def random(rows: int, n: int, seed: int = 0) -> Tensor:
    """[rows, n] f32 that bf16 holds."""
    gen = torch.Generator().manual_seed(seed + 7 * rows + n)
    return torch.randn(rows, n, generator=gen).bfloat16().float()


def each_way(weight: PackedWeight) -> Iterator[int]:
    """Sets the weight's way to all that the library offers, the level's own first, but for dot products of
    bytes, which round their inputs (test_coded_bytes.py)."""
    able = library().nx_ways(weight.kind)
    for way in range(len(WAYS)):
        if way == 0 or (able >> way & 1 and way != BY_BYTES):
            weight.struct.way = way
            yield way
    weight.struct.way = 0


def assert_close(y: Tensor, x: Tensor, meant: Parts, bits: int) -> None:
    x = x.double()
    size = meant.scale.abs() * (3 << bits) + meant.min.abs()
    bound = (x.shape[1] + 16) * SINGLE * (x.abs() @ size.T)
    assert ((y.double() - x @ meant.weight.T).abs() <= bound).all()


@every_kind
def test_against_f64(pool: Pool, kind: int) -> None:
    """Panels of every width; one block of inputs and several."""
    for n_out, blocks in itertools.product(OUTPUTS, (1, 3)):
        n_in = blocks * BLOCKS[kind]
        weight, meant = packed(kind, n_out, n_in)
        for _ in each_way(weight):
            for rows in ROWS if n_out in (1, 200) else (1, 7):
                x = random(rows, n_in)
                y = linear(pool, x, weight)
                assert y.shape == (rows, n_out)
                assert_close(y, x, meant, BITS[kind])


@every_kind
def test_every_input_meets_its_own_code(pool: Pool, kind: int) -> None:
    """Rows that pick one input each: what comes out is that weight, but for a few roundings."""
    n_in = 2 * BLOCKS[kind]
    weight, meant = packed(kind, 80, n_in)
    size = meant.scale.abs() * (3 << BITS[kind]) + meant.min.abs()
    for _ in each_way(weight):
        error = linear(pool, torch.eye(n_in), weight).double() - meant.weight.T
        assert (error.abs() <= 4 * SINGLE * size.T).all()


@pytest.mark.parametrize("group", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("kind", [INT4, INT4Z], ids=["int4", "int4 with zeros"])
def test_groups_of_int4(pool: Pool, kind: int, group: int) -> None:
    """Groups larger than the kernels' own are cut."""
    for n_out, groups, rows in ((16, 1, 3), (80, 2, 1), (200, 3, 9)):
        weight, meant = packed(kind, n_out, groups * group, group=group)
        x = random(rows, groups * group)
        for _ in each_way(weight):
            assert_close(linear(pool, x, weight), x, meant, 4)


@pytest.mark.parametrize("zeros", [False, True])
def test_int4_of_plain_weights(pool: Pool, zeros: bool) -> None:
    """One step of each weight at most: half a step from its code, and a whole one where codes end at 7."""
    plain, x = torch.randn(48, 256, generator=torch.Generator().manual_seed(5)), random(5, 256)
    weight = PackedWeight(48, 256, INT4Z if zeros else INT4, block=64)
    weight.place(plain)
    step = plain.view(48, 4, 64).abs().amax(2) / 8
    bound = x.double().abs() @ step.double().repeat_interleave(64, 1).T
    error = (linear(pool, x, weight).double() - x.double() @ plain.double().T).abs()
    assert (error <= bound * 1.01).all()
    assert error.max() > bound.min() / 1000, "it is rounded at all"


@every_kind
def test_interleaved_halves(pool: Pool, kind: int) -> None:
    """Gate and up projection take turns by 16 outputs; outputs that are never placed are zero."""
    n_in = BLOCKS[kind]
    halves = [random_stored(kind, 37, n_in, seed) for seed in (1, 2)]
    weight = PackedWeight(96, n_in, kind)
    for first, stored in enumerate(halves):
        weight.place(stored, first=first, interleave=2)
    x = random(3, n_in)
    for _ in each_way(weight):
        y = linear(pool, x, weight).view(3, 3, 2, 16)
        for side, stored in enumerate(halves):
            flat = y[:, :, side].reshape(3, 48)
            assert_close(flat[:, :37], x, parts(kind, stored), BITS[kind])
            assert not flat[:, 37:].any()


@every_kind
def test_parts_and_members(pool: Pool, kind: int) -> None:
    """Two matrices one above the other, three times one after another."""
    n_in = 2 * BLOCKS[kind]
    weight, x = PackedWeight(83, n_in, kind, members=3), random(5, n_in)
    placed = [[random_stored(kind, n, n_in, seed) for n in (13, 70)] for seed in range(3)]
    for member, (upper, lower) in enumerate(placed):
        weight.place(upper, member=member)
        weight.place(lower, member=member, first=13)
    for both in placed:
        y = linear(pool, x, weight)
        for stored, own in zip(both, y.split((13, 70), dim=1), strict=True):
            assert_close(own, x, parts(kind, stored), BITS[kind])
        weight.struct.data += weight.stride


@every_kind
def test_a_row_has_the_same_bits_in_any_company(level: str, kind: int) -> None:
    """1 to 20 rows, and more than are worked on at once; any number of threads."""
    for n_out, blocks in ((16, 1), (112, 2), (400, 3)):
        n_in = blocks * BLOCKS[kind]
        weight, _ = packed(kind, n_out, n_in)
        x = random(300, n_in)
        for _ in each_way(weight):
            with Pool(1) as alone:
                each = torch.cat([linear(alone, x[i : i + 1], weight) for i in range(20)])
                for n in (*range(1, 21), 64, 95, 96, 97, 200, 300):
                    for first in (0, 5):
                        y = linear(alone, x[first : first + n], weight)[: 20 - first]
                        assert torch.equal(y, each[first : first + len(y)])
                last = linear(alone, torch.cat((x[100:299], x[:1])), weight)
                assert torch.equal(last[-1:], each[:1])
                whole = linear(alone, x, weight)
            for threads in (2, 5):
                with Pool(threads) as some:
                    assert torch.equal(linear(some, x, weight), whole)


@every_kind
def test_ranks_compute_the_same_bits(pool: Pool, kind: int) -> None:
    """A rank has some of the panels (outputs_of in csrc/panels.h)."""
    n_in, n_out = 2 * BLOCKS[kind], 200
    weight, _ = packed(kind, n_out, n_in)
    x = random(9, n_in)
    for _ in each_way(weight):
        whole = linear(pool, x, weight)
        for cut in (64, 128, 192):
            for begin, end in ((0, cut), (cut, 208)):
                some = PackedWeight(end - begin, n_in, kind)
                some.struct = Weight.from_buffer_copy(weight.struct)
                some.struct.data += begin * weight.stride // 208
                some.struct.n_out = end - begin
                assert torch.equal(linear(pool, x, some)[:, : n_out - begin], whole[:, begin:end])


@every_kind
def test_the_smallest_and_largest_scales(pool: Pool, kind: int) -> None:
    """Subnormal f16 scales count in full, and one that is infinite spoils its own output alone."""
    n_in = BLOCKS[kind]
    stored = random_stored(kind, 80, n_in)
    if kind in (INT4, INT4Z):
        assert stored.scale is not None
        stored.scale[16:32] = 2.0**-32  # of the unit, the least f16
        stored.scale[40] = torch.inf
    else:
        block = stored.data.view(80, -1, stored.data.shape[1] * BLOCKS[kind] // n_in)
        for at in HALVES[kind]:
            block[16:32, :, at : at + 2] = torch.tensor([2.0**-24 * 3]).half().view(torch.uint8)
            block[40, :, at : at + 2] = torch.tensor([torch.inf]).half().view(torch.uint8)
    weight, meant, x = PackedWeight(80, n_in, kind, block=32), parts(kind, stored), random(7, n_in)
    weight.place(stored)
    assert (meant.scale[16:32] != 0).any(), "f64 has them"
    finite = torch.arange(80) != 40
    rest = Parts(*(part[finite] for part in meant))
    for _ in each_way(weight):
        y = linear(pool, x, weight)
        assert not torch.isfinite(y[:, 40]).any()
        assert_close(y[:, finite], x, rest, BITS[kind])
        small = linear(pool, torch.eye(n_in)[:1], weight)[0, 16:32].double()
        assert torch.equal(small, meant.weight[16:32, 0])


def test_int4_scales_that_f16_cannot_hold_are_refused() -> None:
    stored = random_stored(INT4, 16, 32)
    assert stored.scale is not None
    stored.scale[3] = 300.0
    weight = PackedWeight(16, 32, INT4, block=32)
    with pytest.raises(ValueError, match="a scale of INT4 weights is not below 256"):
        weight.place(stored)


def test_panels_of_int4_mean_what_widening_says(pool: Pool) -> None:
    """Both readings of a checkpoint: multiplied as it is stored, and widened where there is no kernel."""
    data = torch.arange(16 * 32).view(16, 32).to(torch.uint8)
    stored = Stored(Format(INT4_NAME, 64), (16, 64), data, torch.full((16, 1), 0.25))
    weight = PackedWeight(16, 64, INT4, block=64)
    weight.place(stored)
    assert torch.equal(linear(pool, torch.eye(64), weight), widened(stored, torch.float32).T)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    rows=st.integers(1, 110),
    n_out=st.integers(1, 200),
    blocks=st.integers(1, 4),
    kind=st.sampled_from(CODED),
    threads=st.sampled_from([1, 2, 5]),
    at=st.integers(0, 109),
    seed=st.integers(0, 5),
)
def test_any_shape(rows: int, n_out: int, blocks: int, kind: int, threads: int, at: int, seed: int) -> None:
    with at_level(built_levels()[seed % len(built_levels())]), Pool(threads) as pool:
        n_in = blocks * BLOCKS[kind]
        weight, meant = packed(kind, n_out, n_in, seed)
        x = random(rows, n_in, seed)
        for _ in each_way(weight):
            y = linear(pool, x, weight)
            assert_close(y, x, meant, BITS[kind])
            at %= rows
            assert torch.equal(linear(pool, x[at : at + 1], weight)[0], y[at])
