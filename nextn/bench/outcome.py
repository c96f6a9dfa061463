"""The result of one run of `nextn bench serve`. The block, the JSONL record and the plot are made from it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from nextn.bench import datasets
from nextn.bench.acceptance import Acceptance
from nextn.bench.client import Load, Reply
from nextn.bench.measure import Metrics, Spread


@dataclass(frozen=True)
class Outcome:
    backend: str
    model: str | None
    dataset: datasets.Options
    request_rate: float  # requests/s; inf: all at once
    max_concurrency: int | None
    load: Load
    metrics: Metrics
    retokenized: int | None  # tokens of the texts; None without a tokenizer
    acceptance: Acceptance | None
    goodput: float | None  # requests/s

    def record(self) -> dict[str, Any]:
        """The JSONL record: bench_serving's keys, then our own. An infinite rate is "inf", because JSON has
        no infinity."""
        metrics, acceptance, data = self.metrics, self.acceptance, self.dataset
        return {
            "backend": self.backend,
            "dataset_name": data.name,
            "request_rate": "inf" if math.isinf(self.request_rate) else self.request_rate,
            "max_concurrency": self.max_concurrency,
            "sharegpt_output_len": data.sharegpt_output_len,
            "random_input_len": data.random_input_len,
            "random_output_len": data.random_output_len,
            "random_range_ratio": data.random_range_ratio,
            "duration": metrics.seconds,
            "completed": metrics.requests,
            "total_input_tokens": metrics.input_tokens,
            "total_output_tokens": metrics.output_tokens,
            "total_output_tokens_retokenized": self.retokenized,
            "request_throughput": metrics.request_throughput,
            "input_throughput": metrics.input_throughput,
            "output_throughput": metrics.output_throughput,
            "total_throughput": metrics.total_throughput,
            **spread_keys("e2e_latency", metrics.e2e_ms),
            **spread_keys("ttft", metrics.ttft_ms),
            **spread_keys("tpot", metrics.tpot_ms),
            **spread_keys("itl", metrics.itl_ms),
            "max_itl_ms": metrics.itl_ms.max,
            "concurrency": metrics.concurrency,
            "accept_length": acceptance.length if acceptance else None,
            "accept_rates": acceptance.by_position if acceptance else [],
            "accept_length_of": None if not acceptance else "lifetime" if acceptance.lifetime else "run",
            "accept_length_source": acceptance.source if acceptance else None,
            "simulated": acceptance is not None and acceptance.simulated,
            "failed": len(self.load.failures),
            "errors_by_kind": dict(Counter(failure.kind for failure in self.load.failures)),
            "goodput": self.goodput,
            "model": self.model,
            "num_prompts": len(self.load.outcomes),
            "seed": data.seed,
        }

    def details(self) -> dict[str, Any]:
        """Lists with one entry per request, in order. A failed request has zero or empty entries. Times are
        in seconds."""
        replies = [o if isinstance(o, Reply) else None for o in self.load.outcomes]
        return {
            "input_lens": [r.prompt_tokens if r else 0 for r in replies],
            "output_lens": [r.completion_tokens if r else 0 for r in replies],
            "ttfts": [r.ttft if r else 0.0 for r in replies],
            "itls": [r.gaps if r else [] for r in replies],
            "generated_texts": [r.text if r else "" for r in replies],
            "errors": ["" if isinstance(o, Reply) else str(o) for o in self.load.outcomes],
        }


def spread_keys(name: str, spread: Spread) -> dict[str, float]:
    return {
        f"{kind}_{name}_ms": getattr(spread, kind) for kind in ("mean", "median", "std", "p90", "p95", "p99")
    }
