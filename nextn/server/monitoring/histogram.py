"""A Prometheus histogram that counts many equal values in one call. prometheus_client's own histogram needs
one call for each value."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import INF, floatToGoString


class Histogram:
    def __init__(self, name: str, help: str, buckets: Sequence[float]) -> None:
        """buckets: upper bounds of the buckets, without infinity."""
        self._name, self._help, self._bounds = name, help, [*buckets, INF]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self) -> HistogramMetricFamily:
        bounds = map(floatToGoString, self._bounds)
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        return HistogramMetricFamily(self._name, self._help, buckets, self._sum)
