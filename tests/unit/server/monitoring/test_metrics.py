"""Metrics: totals that outlive an engine, names as others scrape them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from support.engine_stats import stats

from nextn.drafting_state import DraftingState
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_metrics import EngineMetrics
from nextn.stats import EngineStats, SpecStats


def metrics_of(metrics: EngineMetrics) -> Metrics:
    return Metrics(EngineClient(metrics))


def samples(metrics: EngineMetrics) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(metrics_of(metrics).render().decode())
    return {(s.name, s.labels.get("position", "")): s.value for family in families for s in family.samples}


def test_names_and_values() -> None:
    metrics = EngineMetrics(4)
    metrics.on_step(stats(4, 1), 1.0)
    got = samples(metrics)
    assert got["nextn:token_usage", ""] == 0.5
    assert got["nextn:cache_hit_rate", ""] == 0.4
    assert got["nextn:gen_throughput", ""] == 8
    assert got["nextn:spec_accept_length", ""] == 2
    assert got["nextn:spec_accept_rate", ""] == 0.5
    # nextn counts depths from 1, vLLM from 0.
    assert [got["nextn:spec_draft_tokens_total", p] for p in "12"] == [4, 4]
    assert [got["nextn:spec_accepted_tokens_total", p] for p in "12"] == [4, 0]
    assert [got["vllm:spec_decode_num_accepted_tokens_per_pos_total", p] for p in "01"] == [4, 0]
    assert got["vllm:spec_decode_num_drafts_total", ""] == 4
    assert got["vllm:spec_decode_num_draft_tokens_total", ""] == 8
    assert got["vllm:spec_decode_num_accepted_tokens_total", ""] == 4


def test_what_automatic_depth_does() -> None:
    """Absent where the depth is fixed and where there is no engine."""
    names = ("nextn:auto_drafting", ""), ("nextn:auto_draft_gain", "")
    metrics = EngineMetrics(4)
    metrics.on_step(EngineStats(), 1.0)
    assert not samples(metrics).keys() & set(names)
    for auto in (DraftingState(False, 16, 0.94, "x"), DraftingState(True, 1, 1.5, "y")):
        metrics.on_step(EngineStats(auto=auto), 1.0)
        got = samples(metrics)
        assert [got[name] for name in names] == [auto.drafting, auto.gain]
    metrics.engine_gone()
    assert not samples(metrics).keys() & set(names)


# What people's dashboards of SGLang show, under its prefix there.
SGLANG = """
num_running_reqs num_queue_reqs num_used_tokens max_total_num_tokens token_usage gen_throughput cache_hit_rate
num_retracted_reqs spec_accept_length spec_accept_rate prompt_tokens_total generation_tokens_total
cached_tokens_total num_requests_total num_aborted_requests_total queue_time_seconds_bucket
time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket
time_per_output_token_seconds_bucket prompt_tokens_histogram_bucket generation_tokens_histogram_bucket
"""


def test_names_that_people_know() -> None:
    got = {name for name, _ in samples(EngineMetrics(4))}
    assert [name for name in SGLANG.split() if f"nextn:{name}" not in got] == []


def test_accepted_drafts_per_step() -> None:
    metrics = EngineMetrics(4)
    spec = SpecStats()
    for proposed, accepted in [(0, 0), (2, 0), (2, 2), (16, 16), (16, 7), (1, 1)]:
        spec.add(proposed, accepted, accepted + 1)
    metrics.on_step(EngineStats(spec=spec), 1.0)
    (family,) = (
        found
        for found in text_string_to_metric_families(metrics_of(metrics).render().decode())
        if found.name == "nextn:spec_accepted_drafts_per_step"
    )
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets == {
        "0.0": 2, "1.0": 3, "2.0": 4, "3.0": 4, "4.0": 4, "5.0": 4, "6.0": 4,
        "8.0": 5, "12.0": 5, "16.0": 6, "+Inf": 6,
    }  # fmt: skip
    others = {s.name.rpartition("_")[2]: s.value for s in family.samples if not s.name.endswith("_bucket")}
    assert others == {"count": 6, "sum": 26}


def test_what_vllm_bench_reads() -> None:
    """Its scraper takes lines that begin with vllm:spec_decode, tells them apart by substrings, and takes
    the last word for the value: a _created sample would be counted."""
    metrics = EngineMetrics(4)
    metrics.on_step(stats(4, 1), 1.0)
    read = {
        "num_drafts": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens_per_pos": 0,
        "num_accepted_tokens": 0,
    }
    for line in metrics_of(metrics).render().decode().splitlines():
        if line.startswith("vllm:spec_decode"):
            name = next(name for name in read if name in line)
            read[name] += int(float(line.split()[-1]))
    assert list(read.values()) == [4, 8, 4, 4]


def test_totals_outlive_an_engine() -> None:
    metrics = EngineMetrics(4)
    metrics.on_step(stats(5, 2), 1.0)
    metrics.engine_gone()
    gone = samples(metrics)
    assert gone["nextn:generation_tokens_total", ""] == 15
    assert gone["nextn:num_running_reqs", ""] == gone["nextn:num_used_tokens", ""] == 0
    metrics.on_step(stats(4, 1), 1.0)
    both = samples(metrics)
    assert both["nextn:generation_tokens_total", ""] == 23
    assert both["nextn:spec_verify_steps_total", ""] == 9
    assert both["nextn:prompt_tokens_total", ""] == 20
    assert both["nextn:spec_accept_length", ""] == 2


def test_no_decode_yet() -> None:
    got = samples(EngineMetrics(4))
    assert got["nextn:spec_accept_length", ""] == 0
    assert got["vllm:spec_decode_num_drafts_total", ""] == 0
