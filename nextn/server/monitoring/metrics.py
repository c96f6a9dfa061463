"""/metrics: the engine's metrics and the latencies of requests, in Prometheus' format.

Names are SGLang's with the prefix `nextn:`, and those of vLLM's `spec_decode` counters, which
`vllm bench serve` reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

import nextn
from nextn.request import SpecStats
from nextn.server.process.engine_client import EngineClient

TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
ITL_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
E2E_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120)
TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ACCEPTED_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)


class Metrics:
    """All metrics of one server: the engine's, and those of choices, which `Watch` counts."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.requests = 0  # choices sent to the engine; each ends as one of the next three
        self.finished: dict[str, int] = dict.fromkeys(("stop", "length"), 0)  # by their reason
        self.aborted = 0  # given up: by client, /abort_request, deadline or shutdown
        self.failed = 0  # refused by the engine, or lost with it
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # of this process; the engine's memory is its own

        def tokens(name: str, help: str) -> Histogram:
            return Histogram(
                f"nextn:{name}_tokens_histogram", help, buckets=TOKEN_BUCKETS, registry=self.registry
            )

        def histogram(name: str, help: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"nextn:{name}_seconds", help, buckets=tuple(buckets), registry=self.registry)

        self.ttft = histogram("time_to_first_token", "from arrival to the first token", TTFT_BUCKETS)
        self.itl = histogram(
            "inter_token_latency", "time per token: a step's time shared by its tokens", ITL_BUCKETS
        )
        self.e2e = histogram("e2e_request_latency", "from arrival to the last token", E2E_BUCKETS)
        self.queue_time = histogram(
            "queue_time", "from the engine's taking it to its first step", QUEUE_BUCKETS
        )
        self.tpot = histogram("time_per_output_token", "of a request, its first token left out", ITL_BUCKETS)
        self.prompt_length = tokens("prompt", "prompt tokens of a finished choice")
        self.output_length = tokens("generation", "generated tokens of a finished choice")
        self.responses = Counter(
            "nextn:http_responses",
            "answers by route",
            ["endpoint", "method", "status_code"],
            registry=self.registry,
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client when somebody reads /metrics."""
        metrics = self.engine.metrics
        stats, total, last = metrics.stats, metrics.totals(), metrics.interval
        spec = total.spec

        def gauge(name: str, value: float, help: str) -> Metric:
            return GaugeMetricFamily(f"nextn:{name}", help, value=value)

        def counter(name: str, value: float, help: str) -> Metric:
            return CounterMetricFamily(name, help, value=value)

        def by_position(name: str, values: list[int], first: int, help: str) -> Metric:
            family = CounterMetricFamily(name, help, labels=["position"])
            for position, value in enumerate(values, first):
                family.add_metric([str(position)], value)
            return family

        throughput = last.throughput if stats.running else 0.0
        usage = stats.used_tokens / max(stats.total_tokens, 1)
        hit_rate = total.cached_tokens / max(total.prompt_tokens, 1)
        yield gauge("num_running_reqs", stats.running, "requests in the engine's batch")
        yield gauge("num_queue_reqs", stats.waiting, "requests waiting for their turn")
        yield gauge("num_used_tokens", stats.used_tokens, "KV slots in use")
        yield gauge("max_total_num_tokens", stats.total_tokens, "KV slots there are")
        yield gauge("token_usage", usage, "KV slots in use / there are")
        yield gauge("gen_throughput", throughput, "generated tokens per second, last interval; 0 when idle")
        yield gauge("cache_hit_rate", hit_rate, "prompt tokens found in the prefix cache / prompt tokens")
        yield gauge("num_retracted_reqs", total.retracted, "requests put back because pages ran out, so far")
        yield gauge("spec_accept_length", last.spec.accept_length, "tokens per verify step, last interval")
        yield gauge("spec_accept_rate", last.spec.accept_rate, "drafts accepted / proposed, last interval")
        simulated = "1: drafts are accepted by lot (--speculative-simulate-accept-length)"
        yield gauge("spec_simulated", int(stats.spec.simulated), simulated)
        if stats.auto is not None:
            yield gauge("auto_drafting", int(stats.auto.drafting), "1: automatic depth drafts at this load")
            predicted = "tokens/s with drafts over without at this load, as automatic depth predicts it"
            yield gauge("auto_draft_gain", stats.auto.gain, predicted)
        yield counter("nextn:prompt_tokens", total.prompt_tokens, "prompt tokens, cached ones included")
        yield counter("nextn:cached_tokens", total.cached_tokens, "prompt tokens found in the prefix cache")
        yield counter("nextn:generation_tokens", total.generated_tokens, "generated tokens")
        yield counter("nextn:num_requests", self.requests, "choices asked for")
        yield counter(
            "nextn:num_aborted_requests",
            self.aborted,
            "choices given up by client, /abort_request, deadline or shutdown",
        )
        yield counter(
            "nextn:num_failed_requests", self.failed, "choices refused by the engine or lost with it"
        )
        finished = CounterMetricFamily(
            "nextn:num_finished_requests", "choices that came to their end", labels=["finish_reason"]
        )
        for reason, count in self.finished.items():
            finished.add_metric([reason], count)
        yield finished
        yield gauge("engine_up", metrics.engine_up, "1 while there is an engine to serve")
        yield gauge(
            "seconds_since_last_step",
            self.engine.silent_for(),
            "since the engine was last heard of, while it has requests; 0 when idle",
        )
        yield counter("nextn:engine_busy_seconds", metrics.busy, "in which the engine had work")
        waited = "of these, in which the engine's ranks waited for each other (--tp-size)"
        yield counter("nextn:rank_wait_seconds", total.waited, waited)
        yield counter("nextn:engine_restarts", metrics.restarts, "engines started after the first")
        build = GaugeMetricFamily("nextn:build_info", "which nextn this is", labels=["version"])
        build.add_metric([nextn.__version__], 1)
        yield build
        yield counter("nextn:spec_verify_steps", spec.verify_steps, "decode steps of requests")
        yield counter("nextn:spec_committed_tokens", spec.committed, "tokens that decode steps committed")
        yield by_position("nextn:spec_draft_tokens", spec.proposed, 1, "drafts proposed, by depth from 1")
        yield by_position("nextn:spec_accepted_tokens", spec.accepted, 1, "drafts accepted, by depth from 1")
        yield accepted_per_step(spec)
        drafts = spec.proposed[0] if spec.proposed else 0
        yield counter("vllm:spec_decode_num_drafts", drafts, "verify steps with drafts")
        yield counter("vllm:spec_decode_num_draft_tokens", sum(spec.proposed), "drafts proposed")
        yield counter("vllm:spec_decode_num_accepted_tokens", sum(spec.accepted), "drafts accepted")
        yield by_position(
            "vllm:spec_decode_num_accepted_tokens_per_pos", spec.accepted, 0, "drafts accepted, from 0"
        )


def accepted_per_step(spec: SpecStats) -> Metric:
    """Verify steps by how many drafts they accepted, none proposed included."""
    buckets = [(floatToGoString(most), sum(spec.histogram[: most + 1])) for most in ACCEPTED_BUCKETS]
    return HistogramMetricFamily(
        "nextn:spec_accepted_drafts_per_step",
        "drafts that a verify step accepted",
        buckets=[*buckets, ("+Inf", sum(spec.histogram))],
        sum_value=sum(spec.accepted),
    )
