"""The sum-and-max model on fixed numbers, and the arithmetic whose peak it takes."""

from __future__ import annotations

import pytest
import torch

from nextn.bench.dev.micro.arithmetic import FLOATS, PAIRS, TILES, of_torch, of_weight, peak, shares
from nextn.bench.dev.micro.bound import Bound
from nextn.bench.dev.micro.formats import FORMATS
from nextn.bench.dev.micro.op_work import Work
from nextn.cli.bench.micro import FORMATS as OFFERED
from nextn.ops.cpu.interface import BF16, E4M3, F32, INT4, INT8, Q4_K, Weight

AMX, BF16_PAIRS, PLAIN = (TILES, PAIRS, FLOATS), (PAIRS, FLOATS), (FLOATS,)  # what each level has


def test_both_times_their_max_and_their_sum() -> None:
    found = Bound.of(Work(bytes=200, flops=300), 3.0, bytes_per_s=100.0, flops_per_s=300.0)
    assert (found.reading, found.arithmetic, found.measured) == (2.0, 1.0, 3.0)
    assert (found.longer, found.sum) == (2.0, 3.0)
    assert (found.over_max, found.over_sum) == (1.5, 1.0)
    assert found.as_dict() == {
        "read_ms": 2000.0, "arithmetic_ms": 1000.0, "max_ms": 2000.0, "sum_ms": 3000.0,
        "measured_ms": 3000.0, "over_max": 1.5, "over_sum": 1.0, "waits_for": "both in turn",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reading", "arithmetic", "measured", "waits_for"),
    [
        (4.0, 1.0, 4.2, "reading"),
        (4.0, 1.0, 2.0, "reading"),  # out of a cache
        (1.0, 4.0, 4.2, "arithmetic"),
        (4.0, 3.0, 7.5, "both in turn"),
        (4.0, 3.0, 8.0, "other work"),
        (4.0, 0.0, 8.0, "other work"),  # an op without products
    ],
)
def test_what_is_waited_for(reading: float, arithmetic: float, measured: float, waits_for: str) -> None:
    assert Bound(reading, arithmetic, measured).waits_for == waits_for


@pytest.mark.parametrize(
    ("able", "kind", "way", "found"),
    [
        (AMX, BF16, 0, TILES),
        (AMX, INT8, 0, TILES),
        (AMX, BF16, 2, PAIRS),
        (AMX, Q4_K, 0, PAIRS),  # few-bit codes have no tiles
        (AMX, INT4, 3, FLOATS),
        (AMX, Q4_K, 1, TILES),  # unless a level has them
        (AMX, F32, 0, FLOATS),
        (BF16_PAIRS, E4M3, 0, PAIRS),
        (BF16_PAIRS, Q4_K, 0, PAIRS),
        (BF16_PAIRS, Q4_K, 3, FLOATS),
        (PLAIN, BF16, 0, FLOATS),
        (PLAIN, Q4_K, 0, FLOATS),
    ],
)
def test_the_arithmetic_of_a_weight(able: tuple[str, ...], kind: int, way: int, found: str) -> None:
    assert of_weight(Weight(kind=kind, way=way), able) == found


def test_the_peak_of_a_mixture_is_that_of_the_time_it_takes() -> None:
    parts = shares([(TILES, 300), (FLOATS, 50), (TILES, 50), (PAIRS, 0)])
    assert parts == {TILES: 0.875, FLOATS: 0.125}
    # 8 operations: 7 at 70 a second and 1 at 1 a second take 1.1 s.
    assert peak(parts, {TILES: 70.0, FLOATS: 1.0}) == pytest.approx(8 / 1.1)
    assert peak({FLOATS: 1.0}, {FLOATS: 5.0}) == 5.0


def test_torch_computes_weights_of_one_byte_in_bf16() -> None:
    assert of_torch(torch.float32) == "torch float32"
    assert of_torch(torch.int8) == of_torch(torch.bfloat16) == "torch bfloat16"


def test_the_command_offers_every_format() -> None:
    assert tuple(FORMATS) == OFFERED
    assert FORMATS["Q4_0"].fits(96)
    assert not FORMATS["Q4_K"].fits(96)
    assert not FORMATS["INT4"].fits(192)  # groups of 128
    assert FORMATS["bf16"].fits(7)
