"""Throughput and latencies of a load, in bench_serving's terms.

E2E: time from sending to the last chunk. TTFT: time to first token. TPOT: time per output token after the
first, (E2E - TTFT) / (tokens - 1). ITL: inter-token latency, the time between two chunks of a stream. With
drafts a chunk can have several tokens; see `Reply.gaps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nextn.bench.client import Load


@dataclass(frozen=True)
class Spread:
    """The distribution of one latency, in milliseconds."""

    mean: float
    median: float
    std: float
    p90: float
    p95: float
    p99: float
    max: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread:
        """Makes it from values in seconds; all zero if there are no values."""
        ms = np.asarray(seconds if len(seconds) else [0.0]) * 1000.0
        p90, p95, p99 = np.percentile(ms, (90, 95, 99)).tolist()
        return Spread(
            float(ms.mean()), float(np.median(ms)), float(ms.std()), p90, p95, p99, float(ms.max())
        )  # fmt: skip


@dataclass(frozen=True)
class Metrics:
    """The results of one load, over the requests that succeeded."""

    requests: int
    seconds: float
    input_tokens: int
    output_tokens: int
    output_throughput: float  # tokens/s over the whole load, time for prompts included
    concurrency: float  # requests in flight, on average
    e2e_ms: Spread
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread

    @property
    def request_throughput(self) -> float:
        return self.requests / self.seconds

    @property
    def input_throughput(self) -> float:
        return self.input_tokens / self.seconds

    @property
    def total_throughput(self) -> float:
        return self.input_throughput + self.output_throughput


def calculate_metrics(load: Load) -> Metrics:
    replies = load.replies
    output = sum(r.completion_tokens for r in replies)
    return Metrics(
        requests=len(replies),
        seconds=load.seconds,
        input_tokens=sum(r.prompt_tokens for r in replies),
        output_tokens=output,
        output_throughput=output / load.seconds,
        concurrency=sum(r.latency for r in replies) / load.seconds,
        e2e_ms=Spread.of([r.latency for r in replies]),
        ttft_ms=Spread.of([r.ttft for r in replies]),
        tpot_ms=Spread.of([r.tpot for r in replies if r.tpot is not None]),
        itl_ms=Spread.of([gap for r in replies for gap in r.gaps]),
    )
