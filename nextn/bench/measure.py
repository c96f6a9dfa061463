"""Figures of a load: throughput and latencies, in bench_serving's terms.

TTFT: time to first token. TPOT: time per output token after the first, (latency - TTFT) / (tokens - 1).
ITL: inter-token latency, the time between two chunks of a stream; with drafts a chunk has several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nextn.bench.client import Load


@dataclass(frozen=True)
class Spread:
    """Of one latency, in milliseconds."""

    mean: float
    median: float
    p99: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread:
        """All zero when there is nothing to measure."""
        if not seconds:
            return Spread(0.0, 0.0, 0.0)
        ms = np.asarray(seconds) * 1000.0
        return Spread(float(ms.mean()), float(np.median(ms)), float(np.percentile(ms, 99)))


@dataclass(frozen=True)
class Figures:
    """Of one load."""

    requests: int
    seconds: float
    input_tokens: int
    output_tokens: int
    output_throughput: float  # tokens/s over the whole load, prompts' time included
    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread


def figures(load: Load) -> Figures:
    replies = load.replies
    output = sum(r.completion_tokens for r in replies)
    return Figures(
        requests=len(replies),
        seconds=load.seconds,
        input_tokens=sum(r.prompt_tokens for r in replies),
        output_tokens=output,
        output_throughput=output / load.seconds,
        ttft_ms=Spread.of([r.ttft for r in replies]),
        tpot_ms=Spread.of([r.tpot for r in replies if r.tpot is not None]),
        itl_ms=Spread.of([gap for r in replies for gap in r.gaps]),
    )
