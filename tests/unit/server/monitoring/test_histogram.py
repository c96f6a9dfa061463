"""Counting many values at once, against prometheus_client's histogram, which counts them one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as OneByOne

from nextn.server.monitoring.histogram import Histogram

BOUNDS = (0.001, 0.25, 1.0, 5.0)
values = st.sampled_from([0.0, 0.001, 0.0011, 0.25, 1.0, 5.0, 7.5])


@given(st.lists(st.tuples(values, st.integers(0, 5)), max_size=8))
def test_the_samples_are_prometheus_clients(seen: list[tuple[float, int]]) -> None:
    one_by_one = OneByOne("x_seconds", "what it is", buckets=BOUNDS, registry=CollectorRegistry())
    mine = Histogram("x_seconds", "what it is", BOUNDS)
    for value, times in seen:
        mine.observe(value, times)
        for _ in range(times):
            one_by_one.observe(value)
    (family,) = one_by_one.collect()
    theirs = {
        (s.name, *s.labels.values()): s.value for s in family.samples if not s.name.endswith("_created")
    }
    assert {(s.name, *s.labels.values()): s.value for s in mine.family().samples} == pytest.approx(theirs)
