"""The result block of a load, for a terminal. It has bench_serving's lines in the same form and order, so
that parsers of bench_serving's logs can read it.

Goodput, acceptance by position and failures by kind, which bench_serving does not have, follow in extra
sections.
"""

from __future__ import annotations

import math
from collections import Counter

from nextn.bench.measure import Metrics, Spread
from nextn.bench.outcome import Outcome

WIDTH, LABEL = 50, 40
SIMULATED = "simulated"  # the texts are then not the model's either


def result_block(outcome: Outcome) -> str:
    """Makes the block, without a final line break."""
    metrics, acceptance = outcome.metrics, outcome.acceptance
    lines = [
        heading(" Serving Benchmark Result ", "="),
        line("Backend:", outcome.backend),
        line("Traffic request rate:", "inf" if math.isinf(outcome.request_rate) else outcome.request_rate),
        line("Max request concurrency:", outcome.max_concurrency or "not set"),
        *totals(metrics, outcome.retokenized),
    ]
    if acceptance is not None and acceptance.length is not None:
        lines.append(line("Accept length:", acceptance.length))
    lines += [
        *latency("End-to-End Latency", "E2E Latency", metrics.e2e_ms, "mean median p90 p99"),
        *latency("Time to First Token", "TTFT", metrics.ttft_ms, "mean median p99"),
        *latency("Time per Output Token (excl. 1st token)", "TPOT", metrics.tpot_ms, "mean median p99"),
        *latency("Inter-Token Latency", "ITL", metrics.itl_ms, "mean median p95 p99 max"),
    ]
    if acceptance is not None and acceptance.length is not None:
        lines += [
            heading("Speculation", "-"),
            line("Accept length is of:", "server's lifetime" if acceptance.lifetime else "this run"),
            *([line("Acceptance is:", SIMULATED)] if acceptance.simulated else []),
            *(
                line(f"Acceptance at position {position}:", rate)
                for position, rate in enumerate(acceptance.by_position, 1)
            ),
        ]
    if outcome.goodput is not None:
        lines += [heading("Goodput", "-"), line("Request goodput (req/s):", outcome.goodput)]
    if failures := outcome.load.failures:
        kinds = Counter(failure.kind for failure in failures)
        lines += [
            heading("Failures", "-"),
            line("Failed requests:", len(failures)),
            *(line(f"  {kind}:", count) for kind, count in kinds.most_common()),
        ]
    return "\n".join([*lines, "=" * WIDTH])


def totals(metrics: Metrics, retokenized: int | None) -> list[str]:
    lines = [
        line("Successful requests:", metrics.requests),
        line("Benchmark duration (s):", metrics.seconds),
        line("Total input tokens:", metrics.input_tokens),
        line("Total generated tokens:", metrics.output_tokens),
    ]
    if retokenized is not None:
        lines.append(line("Total generated tokens (retokenized):", retokenized))
    return [
        *lines,
        line("Request throughput (req/s):", metrics.request_throughput),
        line("Input token throughput (tok/s):", metrics.input_throughput),
        line("Output token throughput (tok/s):", metrics.output_throughput),
        line("Total token throughput (tok/s):", metrics.total_throughput),
        line("Concurrency:", metrics.concurrency),
    ]


def latency(title: str, name: str, spread: Spread, which: str) -> list[str]:
    labels = {"mean": "Mean", "median": "Median", "p90": "P90", "p95": "P95", "p99": "P99", "max": "Max"}
    return [
        heading(title, "-"),
        *(line(f"{labels[kind]} {name} (ms):", getattr(spread, kind)) for kind in which.split()),
    ]


def heading(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def line(label: str, value: object) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else f"{value}"
    return f"{label:<{LABEL}} {shown:<10}"
