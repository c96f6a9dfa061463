"""Reads counters and histograms from /metrics, and computes their differences between two scrapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Key = tuple[str, tuple[str, ...]]  # a sample's name, the values of its labels


@dataclass(frozen=True)
class Distribution:
    """A histogram: `counts[i]` values are at most `bounds[i]`, cumulative; the last bound is infinity."""

    bounds: Sequence[float]
    counts: Sequence[float]

    def quantile(self, q: float) -> float:
        """The quantile as in Prometheus' histogram_quantile: linear inside its bucket, and at most the last
        finite bound. nan without values."""
        if not self.counts or not self.counts[-1]:
            return math.nan
        rank = q * self.counts[-1]
        i = next(i for i, count in enumerate(self.counts) if count >= rank and count > 0)
        if math.isinf(self.bounds[i]):
            return self.bounds[i - 1] if i else math.nan
        low, below = (self.bounds[i - 1], self.counts[i - 1]) if i else (0.0, 0.0)
        return low + (self.bounds[i] - low) * (rank - below) / (self.counts[i] - below)


@dataclass(frozen=True)
class Scrape:
    """One scrape of /metrics, or the difference of two (see `since`), with the gauges of the later one."""

    values: Mapping[Key, float]
    growing: frozenset[str] = frozenset()  # names of samples that only grow
    at: float = 0.0  # time in seconds, on any clock
    seconds: float | None = None  # length of the difference; None: since the server's start

    @classmethod
    def read(cls, text: str, at: float) -> Scrape:
        """Parses /metrics, and adds up samples of several replicas. Raises ValueError if the text is not in
        Prometheus' format."""
        values: dict[Key, float] = {}
        growing = set()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(value for label, value in sample.labels.items() if label != "dp_rank")
                values[sample.name, labels] = values.get((sample.name, labels), 0.0) + sample.value
                if family.type in ("counter", "histogram"):
                    growing.add(sample.name)
        return cls(values, frozenset(growing), at)

    def since(self, earlier: Scrape) -> Scrape | None:
        """The difference to an earlier scrape; None if the server was restarted in between."""
        values = dict(self.values)
        for key in values:
            if key[0] in self.growing:
                values[key] -= earlier.values.get(key, 0.0)
                if values[key] < 0 and not key[0].endswith("_created"):
                    return None
        return Scrape(values, self.growing, self.at, self.at - earlier.at)

    def get(self, name: str) -> float:
        """The value of a metric; nan if there is none."""
        return self.values.get((f"nextn:{name}", ()), math.nan)

    def by_position(self, name: str) -> list[float]:
        """A counter's values at positions 1, 2, and so on."""
        found: list[float] = []
        while (key := (f"nextn:{name}_total", (str(len(found) + 1),))) in self.values:
            found.append(self.values[key])
        return found

    def distribution(self, name: str) -> Distribution:
        pairs = sorted(
            (float(labels[0]), count)
            for (sample, labels), count in self.values.items()
            if sample == f"nextn:{name}_bucket"
        )
        return Distribution([bound for bound, _ in pairs], [count for _, count in pairs])

    def ratio(self, part: str, whole: str) -> float:
        """The value of `part` / the value of `whole`; nan if `whole` is 0."""
        below = self.get(whole)
        return self.get(part) / below if below else math.nan
