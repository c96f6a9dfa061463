"""Sums of a nextn server's counters and histograms, read from its /metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "nextn:"


def totals(metrics: str) -> Mapping[str, float]:
    """Sums by name, without "nextn:" and "_total", over all labels. A histogram's buckets are left out. A
    missing name is 0.

    >>> found = totals('nextn:steps_total{dp_rank="0"} 3\\nnextn:steps_total{dp_rank="1"} 4\\n')
    >>> found["steps"], found["transfer_bytes"]
    (7.0, 0.0)
    """
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith(PREFIX) and not sample.name.endswith("_bucket"):
                found[sample.name.removeprefix(PREFIX).removesuffix("_total")] += sample.value
    return found


def grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    return after[name] - before[name]


def mean_seconds(before: Mapping[str, float], after: Mapping[str, float], histogram: str) -> float:
    """The mean of a histogram's observations, in seconds, between two readings; 0 without observations."""
    count = grown(before, after, f"{histogram}_seconds_count")
    return grown(before, after, f"{histogram}_seconds_sum") / count if count else 0.0
