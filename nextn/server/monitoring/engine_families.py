"""The engines' part of /metrics, for one engine or several replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from nextn.expert_load import imbalance
from nextn.server.process.engine_client import EngineClient
from nextn.stats import SpecStats, TransferStats
from nextn.waits import REASONS, Phase

ACCEPTED_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)


def of_engines(ranks: Sequence[EngineClient]) -> Iterable[Metric]:
    """The metrics of all engines. With several replicas, each sample has the label dp_rank. Prometheus can
    add them up, so there are no sums here."""
    if len(ranks) == 1:
        return of_engine(ranks[0])
    families: dict[str, Metric] = {}
    for rank, client in enumerate(ranks):
        for one in of_engine(client):
            whole = families.setdefault(one.name, Metric(one.name, one.documentation, one.type))
            label = {"dp_rank": str(rank)}
            whole.samples += [sample._replace(labels={**sample.labels, **label}) for sample in one.samples]
    return families.values()


def of_engine(client: EngineClient) -> Iterable[Metric]:
    metrics = client.metrics
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
    yield gauge("num_queue_reqs", stats.waiting, "requests in the queue")
    yield gauge("num_used_tokens", stats.used_tokens, "KV slots in use")
    yield gauge("max_total_num_tokens", stats.total_tokens, "all KV slots")
    yield gauge("token_usage", usage, "KV slots in use / all KV slots")
    yield gauge("gen_throughput", throughput, "generated tokens per second, last interval; 0 when idle")
    yield gauge("cache_hit_rate", hit_rate, "prompt tokens found in the prefix cache / prompt tokens")
    yield gauge("num_retracted_reqs", total.retracted, "requests retracted because pages ran out, so far")
    yield gauge("spec_accept_length", last.spec.accept_length, "tokens per verify step, last interval")
    yield gauge("spec_accept_rate", last.spec.accept_rate, "drafts accepted / proposed, last interval")
    simulated = "1: acceptance is simulated (--speculative-simulate-accept-length)"
    yield gauge("spec_simulated", int(stats.spec.simulated), simulated)
    if stats.auto is not None:
        yield gauge("auto_drafting", int(stats.auto.drafting), "1: automatic depth drafts at this load")
        predicted = "tokens/s with drafts / without, at this load, as automatic depth predicts"
        yield gauge("auto_draft_gain", stats.auto.gain, predicted)
    yield counter("nextn:prompt_tokens", total.prompt_tokens, "prompt tokens, cached ones included")
    yield counter("nextn:cached_tokens", total.cached_tokens, "prompt tokens found in the prefix cache")
    yield counter("nextn:generation_tokens", total.generated_tokens, "generated tokens")
    yield gauge("engine_up", metrics.engine_up, "1 while an engine can serve")
    yield gauge(
        "seconds_since_last_step",
        client.silent_for(),
        "time since the engine's last message, while it has requests; 0 when idle",
    )
    yield counter("nextn:engine_busy_seconds", metrics.busy, "seconds in which the engine had work")
    waited = "seconds in which the engine's ranks waited for others, also in other groups' steps (--tp-size)"
    yield counter("nextn:rank_wait_seconds", total.waited, waited)
    yield from of_phases(total.phases)
    sent = "bytes that the engine's ranks sent to others with which they share experts"
    yield counter("nextn:rank_sent_bytes", total.sent, sent)
    if stats.shard_rows is not None:
        loads = [each.metrics.stats.shard_rows for each in client.partners or (client,)]
        highest = "highest load of a shard of experts / the mean, last window of steps (--ep-size)"
        yield gauge("expert_load_imbalance", imbalance([each for each in loads if each is not None]), highest)
    if total.transfer is not None:
        yield from of_transfers(total.transfer)
    yield counter("nextn:engine_restarts", metrics.restarts, "engines started after the first")
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


def of_phases(phases: Mapping[str, Phase]) -> Iterable[Metric]:
    """Metrics of an engine that has several ranks."""
    if not phases:
        return
    took = "seconds of steps of an engine with several ranks, by phase: prefill, decode or idle"
    steps = CounterMetricFamily("nextn:rank_step_seconds", took, labels=["phase"])
    why = "seconds in which the engine's first rank waited for others, by phase and by what it waited for"
    waits = CounterMetricFamily("nextn:rank_phase_wait_seconds", why, labels=["phase", "reason"])
    for name, phase in phases.items():
        steps.add_metric([name], phase.steps)
        for reason, seconds in zip(REASONS, phase.waits.by_reason, strict=True):
            waits.add_metric([name, reason], seconds)
    yield steps
    yield waits


def of_transfers(transfer: TransferStats) -> Iterable[Metric]:
    """Metrics of page transfers: on a prefill server of sent pages, on a decode server of received ones."""
    active = "requests whose KV pages are being transferred, or waited for"
    yield GaugeMetricFamily("nextn:transfer_active", active, value=transfer.active)
    counted = (
        ("finished", transfer.finished, "requests whose KV pages all arrived"),
        ("failed", transfer.failed, "requests for which some KV pages never arrived"),
        ("fallbacks", transfer.fallbacks, "failed transfers whose prompts the decode server computed itself"),
        ("pages", transfer.pages, "KV pages that arrived"),
        ("bytes", transfer.bytes, "bytes of KV pages that arrived"),
        (
            "seconds",
            transfer.seconds,
            "sum over all finished requests of the seconds since each asked for pages",
        ),
    )
    for name, value, help in counted:
        yield CounterMetricFamily(f"nextn:transfer_{name}", help, value=value)


def accepted_per_step(spec: SpecStats) -> Metric:
    """Histogram of verify steps by their number of accepted drafts, including steps without drafts."""
    buckets = [(floatToGoString(most), sum(spec.histogram[: most + 1])) for most in ACCEPTED_BUCKETS]
    return HistogramMetricFamily(
        "nextn:spec_accepted_drafts_per_step",
        "drafts that a verify step accepted",
        buckets=[*buckets, ("+Inf", sum(spec.histogram))],
        sum_value=sum(spec.accepted),
    )
