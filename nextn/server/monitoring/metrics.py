"""/metrics: the engine's metrics and the latencies of requests, in Prometheus' format.

Names are SGLang's with the prefix `nextn:`. vLLM's `spec_decode` counters have vLLM's names, because
`vllm bench serve` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import nextn
from nextn.server.monitoring.engine_families import of_engines
from nextn.server.monitoring.histogram import Histogram as ManyAtOnce
from nextn.server.process.engines import Engines

TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
ITL_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
E2E_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)
TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Metrics:
    """All metrics of one server. `Watch` updates the metrics of choices."""

    def __init__(self, engine: Engines) -> None:
        self.engine = engine
        self.requests = 0  # choices sent to the engine; each is counted below when it ends
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length"), 0)  # finish reason -> choices
        self.aborted = 0  # ended by the client, /abort_request, a deadline or shutdown
        self.failed = 0  # refused by the engine, or lost when it died
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # only this process, without the engine's

        def tokens(name: str, help: str) -> Histogram:
            return Histogram(
                f"nextn:{name}_tokens_histogram", help, buckets=TOKEN_BUCKETS, registry=self.registry
            )

        def histogram(name: str, help: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"nextn:{name}_seconds", help, buckets=tuple(buckets), registry=self.registry)

        self.ttft = histogram("time_to_first_token", "from arrival to the first token", TTFT_BUCKETS)
        self.itl = ManyAtOnce(
            "nextn:inter_token_latency_seconds",
            "time per token: a step's time divided by its tokens",
            ITL_BUCKETS,
        )
        self.e2e = histogram("e2e_request_latency", "from arrival to the last token", E2E_BUCKETS)
        self.queue_time = histogram(
            "queue_time", "from arrival in the engine to the first step", QUEUE_BUCKETS
        )
        self.tpot = histogram(
            "time_per_output_token", "mean of a request, without its first token", ITL_BUCKETS
        )
        self.prompt_length = tokens("prompt", "prompt tokens of a finished choice")
        self.output_length = tokens("generation", "generated tokens of a finished choice")
        self.responses = Counter(
            "nextn:http_responses",
            "HTTP responses by route",
            ["endpoint", "method", "status_code"],
            registry=self.registry,
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client when a client reads /metrics."""
        yield from of_engines(self.engine.ranks)
        counter = CounterMetricFamily
        yield counter("nextn:num_requests", "choices sent to the engine", value=self.requests)
        aborted = "choices aborted by client, /abort_request, deadline or shutdown"
        yield counter("nextn:num_aborted_requests", aborted, value=self.aborted)
        failed = "choices refused by the engine or lost with it"
        yield counter("nextn:num_failed_requests", failed, value=self.failed)
        finished = CounterMetricFamily(
            "nextn:num_finished_requests", "choices that ended normally", labels=["finish_reason"]
        )
        for reason, count in self.finished.items():
            finished.add_metric([reason], count)
        yield finished
        yield self.itl.family()
        build = GaugeMetricFamily("nextn:build_info", "version of nextn", labels=["version"])
        build.add_metric([nextn.__version__], 1)
        yield build
