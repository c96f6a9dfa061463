"""Who goes when, and under which loads."""

from __future__ import annotations

import math

import pytest

from nextn.bench.dev.sweep.plan import Level, Turn, make_levels, turns


def test_sides_take_turns_in_every_round_of_every_load() -> None:
    found = list(turns(scenarios=2, levels=2, rounds=2, sides=2))
    assert [(t.scenario, t.level, t.round, t.side) for t in found[:8]] == [
        (0, 0, 1, 0), (0, 0, 1, 1), (0, 0, 2, 0), (0, 0, 2, 1),
        (0, 1, 1, 0), (0, 1, 1, 1), (0, 1, 2, 0), (0, 1, 2, 1),
    ]  # fmt: skip
    assert found[8] == Turn(scenario=1, level=0, round=1, side=0, serial=4)
    assert len(found) == 16
    # Every side gets the same prompts once, before the next ones come.
    assert [t.serial for t in found] == [n for n in range(8) for _ in "AB"]


def test_sides_but_the_first_change_their_order() -> None:
    found = list(turns(scenarios=1, levels=1, rounds=2, sides=4))
    assert [t.side for t in found] == [0, 1, 2, 3, 0, 3, 2, 1]
    assert list(turns(1, 1, 1, 1)) == [Turn(0, 0, 1, 0, 0)]


def test_levels() -> None:
    assert make_levels([16, 1], [], None) == [Level(8, concurrency=1), Level(32, concurrency=16)]
    assert make_levels([1, 4], [], 5) == [Level(5, concurrency=1), Level(5, concurrency=4)]
    assert make_levels([], [2.5, 0.5], None) == [Level(8, request_rate=0.5), Level(25, request_rate=2.5)]
    assert [str(level) for level in make_levels([4], [], 4) + make_levels([], [2.5], 4)] == [
        "concurrency 4",
        "request rate 2.5",
    ]


@pytest.mark.parametrize(
    ("concurrencies", "rates", "num_prompts", "message"),
    [
        ([0], [], None, "--concurrency 0: every value must be above 0"),
        ([], [-1.0], None, "--request-rate -1.0: every value must be above 0"),
        ([], [math.inf], None, "--request-rate inf: every value"),
        ([], [math.nan], None, "--request-rate nan: every value"),
        ([4, 1, 4], [], None, "--concurrency has 4 twice"),
        ([1, 16], [], 15, "--num-prompts is 15; --concurrency 16 needs 16 at least"),
    ],
)
def test_refusals(
    concurrencies: list[int], rates: list[float], num_prompts: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_levels(concurrencies, rates, num_prompts)
