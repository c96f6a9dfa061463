"""Counters and histograms of /metrics, between two looks and whole."""

from __future__ import annotations

import bisect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.stats import EngineStats, SpecStats
from nextn.terminal.scrape import Distribution, Scrape

BOUNDS = [0.1, 0.5, 1.0, 5.0, math.inf]


@given(values=st.lists(st.floats(0.001, 4.9), min_size=1, max_size=30), q=st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    values = sorted(values)
    found = Distribution(BOUNDS, [bisect.bisect_right(values, b) for b in BOUNDS]).quantile(q)
    true = values[math.ceil(q * len(values)) - 1]
    bucket = bisect.bisect_left(BOUNDS, true)
    low = BOUNDS[bucket - 1] if bucket else 0.0
    assert low - 1e-9 <= found <= BOUNDS[bucket] + 1e-9


def test_quantiles_at_the_edges() -> None:
    assert Distribution(BOUNDS, [0, 0, 0, 0, 3]).quantile(0.5) == 5.0
    assert Distribution(BOUNDS, [4, 4, 4, 4, 4]).quantile(0.5) == pytest.approx(0.05)
    assert math.isnan(Distribution(BOUNDS, [0] * 5).quantile(0.5))
    assert math.isnan(Distribution([], []).quantile(0.5))


def metrics_of(steps: int) -> Metrics:
    metrics = Metrics(EngineClient())
    spec = SpecStats()
    for _ in range(steps):
        spec.add(2, 1, 2)
    stats = EngineStats(generated_tokens=2 * steps, running=steps, total_tokens=100, spec=spec)
    metrics.engine.metrics.on_step(stats, 0.1)
    for _ in range(steps):
        metrics.ttft.observe(0.03)
    return metrics


def scrape(steps: int, at: float = 0.0) -> Scrape:
    return Scrape.read(metrics_of(steps).render().decode(), at)


def test_between_two_looks() -> None:
    earlier = scrape(4, 5.0)
    found = scrape(10, 7.0).since(earlier)
    assert found is not None
    assert found.seconds == 2.0
    assert found.get("generation_tokens_total") == 12
    assert found.get("num_running_reqs") == 10  # a gauge
    assert found.by_position("spec_draft_tokens") == [6, 6]
    assert found.by_position("spec_accepted_tokens") == [6, 0]
    assert found.ratio("spec_committed_tokens_total", "spec_verify_steps_total") == 2.0
    assert found.distribution("time_to_first_token_seconds").counts[-1] == 6
    assert math.isnan(found.ratio("cached_tokens_total", "prompt_tokens_total"))
    assert math.isnan(found.get("no_such_thing"))


def test_depths_that_were_not_there_before() -> None:
    earlier = scrape(0, 0.0)
    found = scrape(3, 1.0).since(earlier)
    assert found is not None
    assert found.by_position("spec_draft_tokens") == [3, 3]


def test_a_server_started_anew() -> None:
    assert scrape(4, 7.0).since(scrape(10, 5.0)) is None
