"""Where the time of requests went, from counters before and after: nothing is lost, nothing counts twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.bench.client import Load, Reply
from nextn.bench.measure import Metrics, calculate_metrics
from nextn.bench.plots import DARK, LIGHT
from nextn.bench.stage_plot import stages_by_side
from nextn.bench.stages import HISTOGRAMS, NAMES, Stages
from nextn.bench.totals import grown, mean_seconds, totals

Span = tuple[Mapping[str, float], Mapping[str, float]]
SECONDS = st.floats(0.0, 10.0)


def span(*means: float) -> Span:
    """Two requests with these means of `HISTOGRAMS`, after one that took a second each."""
    text = "".join(
        f"nextn:{name}_seconds_sum {{}}\nnextn:{name}_seconds_count {{}}\n".replace("{}", "%s")
        for name in HISTOGRAMS
    )
    before = text % tuple(x for _ in HISTOGRAMS for x in (1.0, 1))
    after = text % tuple(x for mean in means for x in (1.0 + 2 * mean, 3))
    return totals(before), totals(after)


def load(seconds: float) -> Metrics:
    return calculate_metrics(Load([Reply("a", 3, 2, 0.0, (seconds / 2, seconds))], seconds))


def total(stages: Stages) -> float:
    return sum(dataclasses.astuple(stages))


def test_every_stage_has_a_name() -> None:
    assert list(NAMES) == [field.name for field in dataclasses.fields(Stages)]


def test_totals_of_replicas_are_summed() -> None:
    found = totals('nextn:steps_total{dp_rank="0"} 3\nnextn:steps_total{dp_rank="1"} 4\nother 1\n')
    assert found["steps"] == 7
    assert found["transfer_bytes"] == 0
    assert grown(totals(""), found, "steps") == 7
    assert mean_seconds(totals(""), found, "queue_time") == 0.0


def test_one_server() -> None:
    stages = Stages.of_one(load(1.0), span(0.1, 0.4, 0.9))
    assert dataclasses.astuple(stages) == pytest.approx((100, 100, 300, 0, 0, 500))


def test_two_servers() -> None:
    """The prefill server: 0.1 s of waiting, 0.3 s of computing. The decode server waited 0.5 s for pages."""
    stages = Stages.of_two(load(1.2), span(0.1, 0.4, 0.4), span(0.5, 0.6, 1.0))
    assert dataclasses.astuple(stages) == pytest.approx((200, 100, 300, 100, 100, 400))


@given(*[SECONDS] * 5)
def test_stages_add_up_to_what_the_client_saw(
    a: float, b: float, waited: float, first: float, rest: float
) -> None:
    decode = waited, waited + first, waited + first + rest
    stages = Stages.of_two(load(decode[-1] + 0.5), span(a, a + b, a + b), span(*decode))
    assert total(stages) == pytest.approx(1e3 * (decode[-1] + 0.5))
    assert min(dataclasses.astuple(stages)) >= -1e-6


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_picture(palette: object) -> None:
    @dataclasses.dataclass(frozen=True)
    class Bar:
        concurrency: int
        side: str
        stages: Stages

    bars = [Bar(4, "one server", Stages(1, 2, 3, 0, 0, 4)), Bar(4, "apart", Stages(1, 2, 3, 1, 1, 2))]
    assert stages_by_side("where", bars, palette).startswith(b"\x89PNG\r\n\x1a\n")  # type: ignore[arg-type]
