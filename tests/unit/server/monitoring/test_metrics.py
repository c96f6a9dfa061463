"""Figures: intervals cut right, totals that outlive an engine, names as others scrape them."""

from __future__ import annotations

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nextn.request import SpecStats
from nextn.scheduler.stats import DraftingState, EngineStats
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.interval import DecodeInterval


def stats(steps: int, accepted: int, running: int = 1) -> EngineStats:
    """After `steps` decode steps of one request with two drafts, `accepted` of them accepted in each."""
    spec = SpecStats()
    for _ in range(steps):
        spec.add(2, accepted, accepted + 1)
    return EngineStats(
        running=running, used_tokens=32, total_tokens=64, decode_steps=steps, prompt_tokens=10,
        cached_tokens=4, generated_tokens=spec.committed, spec=spec,
    )  # fmt: skip


def grown(before: EngineStats, steps: int, accepted: int, running: int = 1) -> EngineStats:
    after = stats(before.decode_steps, 0, running)
    after.spec = SpecStats()
    after.spec.merge(before.spec)
    for _ in range(steps):
        after.spec.add(2, accepted, accepted + 1)
    after.decode_steps += steps
    after.generated_tokens = after.spec.committed
    return after


def test_difference() -> None:
    early, late = stats(3, 1).spec, grown(stats(3, 1), 2, 2).spec
    assert late.since(early) == stats(2, 2).spec
    assert late.since(SpecStats()) == late
    assert late.since(late) == SpecStats(0, [0, 0], [0, 0], 0, [0, 0, 0])


def test_interval_is_the_last_one_not_the_lifetime(caplog: pytest.LogCaptureFixture) -> None:
    interval = DecodeInterval(4)
    first = stats(4, 0)
    with caplog.at_level(logging.INFO, "nextn.decode"):
        interval.update(first, 2.0)
        assert (interval.spec.accept_length, interval.throughput) == (1.0, 2.0)
        interval.update(grown(first, 2, 2), 0.5)
        assert interval.spec.accept_length == 1.0  # not over yet
        interval.update(grown(first, 4, 2), 0.5)
    assert (interval.spec.accept_length, interval.throughput) == (3.0, 12.0)
    assert interval.spec.accept_rate == 1.0
    assert caplog.messages[1] == (
        "Decode batch, #running-req: 1, #token: 32, token usage: 0.50, accept len: 3.00, "
        "accept rate: [1.00, 1.00], gen throughput (token/s): 12.0, #queue-req: 0"
    )


def test_an_idle_engine_shows_the_interval_so_far() -> None:
    interval = DecodeInterval(40)
    interval.update(stats(3, 1), 1.0)
    assert interval.spec.accept_length == 0.0
    interval.update(stats(3, 1, running=0), 0.0)
    assert interval.spec.accept_length == 2.0


def test_no_log_lines_when_none_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    interval = DecodeInterval(0)
    with caplog.at_level(logging.INFO, "nextn.decode"):
        interval.update(stats(40, 1), 1.0)
    assert interval.spec.accept_length == 2.0
    assert caplog.messages == []


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, s.labels.get("position", "")): s.value for family in families for s in family.samples}


def test_names_and_values() -> None:
    metrics = Metrics(4)
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
    metrics = Metrics(4)
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
    got = {name for name, _ in samples(Metrics(4))}
    assert [name for name in SGLANG.split() if f"nextn:{name}" not in got] == []


def test_accepted_drafts_per_step() -> None:
    metrics = Metrics(4)
    spec = SpecStats()
    for proposed, accepted in [(0, 0), (2, 0), (2, 2), (16, 16), (16, 7), (1, 1)]:
        spec.add(proposed, accepted, accepted + 1)
    metrics.on_step(EngineStats(spec=spec), 1.0)
    (family,) = (
        found
        for found in text_string_to_metric_families(metrics.render().decode())
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
    metrics = Metrics(4)
    metrics.on_step(stats(4, 1), 1.0)
    read = {
        "num_drafts": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens_per_pos": 0,
        "num_accepted_tokens": 0,
    }
    for line in metrics.render().decode().splitlines():
        if line.startswith("vllm:spec_decode"):
            name = next(name for name in read if name in line)
            read[name] += int(float(line.split()[-1]))
    assert list(read.values()) == [4, 8, 4, 4]


def test_totals_outlive_an_engine() -> None:
    metrics = Metrics(4)
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
    got = samples(Metrics(4))
    assert got["nextn:spec_accept_length", ""] == 0
    assert got["vllm:spec_decode_num_drafts_total", ""] == 0
