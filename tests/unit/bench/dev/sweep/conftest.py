"""Results as a comparison makes them, with numbers that are easy to check by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from nextn.bench.dev.sweep.identity import Identity
from nextn.bench.dev.sweep.plan import Level
from nextn.bench.dev.sweep.results import Cell, Results, Row, SideInfo
from nextn.bench.dev.sweep.scenarios import make_scenario
from nextn.bench.machine import Machine
from nextn.bench.measure import Metrics, Spread
from nextn.stats import SpecStats

MakeResults = Callable[..., Results]


def metrics(throughput: float, ttft: float, tpot: float, e2e: float = 1000.0) -> Metrics:
    spreads = [Spread(mean, mean, 0.0, mean, mean, mean, mean) for mean in (e2e, ttft, tpot, tpot)]
    return Metrics(8, 10.0, 900, 768, throughput, 1.0, *spreads)


def cell(*rounds: Metrics, depths: int = 0) -> Cell:
    """`depths`: drafts, of which 80, 60, 40, 20 of 100 were accepted."""
    accepted = [80, 60, 40, 20][:depths]
    return Cell(list(rounds), SpecStats(100, [100] * depths, accepted, 100 + sum(accepted)))


def make(sides: int, rate: bool = False) -> Results:
    """Side i drafts i deep. Output tok/s at 1: 100, 150, 120, ...; at 16: 1000, 900, 1100, ..."""
    levels = [Level(8, request_rate=0.5), Level(8, request_rate=4)] if rate else [Level(8, 1), Level(32, 16)]
    gains = {0: (1.0, 1.5, 1.2, 1.0, 0.9), 1: (1.0, 0.9, 1.1, 1.05, 1.0)}
    rows = [
        Row(
            level,
            [
                cell(
                    *(
                        metrics(base * gain * drift, 50.0 * (i + 1), 10.0 / gain, 4e3 - side)
                        for drift in (0.5, 1.0, 9.0)
                    ),
                    depths=side,
                )
                for side, gain in enumerate(gains[i][:sides])
            ],
        )
        for i, (level, base) in enumerate(zip(levels, (100.0, 1000.0), strict=True))
    ]  # fmt: skip
    names = ["MTP off", "1 draft", "2 drafts", "3 drafts", "4 drafts"][:sides]
    identity = Identity(["one"] * sides)
    for side, name in enumerate(names):
        for prompt in range(4):
            identity.add(side, 0, prompt, f"text {prompt}", name)
    return Results(
        sides=[
            SideInfo(name, f"--speculative-num-steps {i}", "nextn", "nextn-tiny", {"dtype": "float32"})
            for i, name in enumerate(names)
        ],
        scenarios=[(make_scenario("random", 0.1), rows)],
        rounds=3,
        temperature=0.0,
        salt=None,
        identity=identity,
        machine=Machine("AMD EPYC", 2, "3.11.7", "2.13.0"),
        seconds=12.3,
    )


def fail(results: Results, side: int, kind: str, count: int) -> None:
    """`count` requests of `side` failed at the first load."""
    failed = results.scenarios[0][1][0].cells[side]
    failed.failures.update(Counter({kind: count}))
    failed.first_failures.setdefault(kind, "the queue is full")


@pytest.fixture
def make_results() -> MakeResults:
    return make


@pytest.fixture
def add_failures() -> Callable[[Results, int, str, int], None]:
    return fail
