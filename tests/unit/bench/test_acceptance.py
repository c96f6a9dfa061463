"""Speculation's counters from /metrics: what the server's own page says, read back."""

from __future__ import annotations

import pytest
from support.played_replicas import played_replicas

from nextn.bench.acceptance import parse_spec, parse_vllm
from nextn.bench.errors import BenchError
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.stats import EngineStats, SpecStats

SPEC = SpecStats(verify_steps=40, proposed=[40, 38], accepted=[30, 12], committed=81)


def rendered(spec: SpecStats, requests: int) -> str:
    metrics = Metrics(EngineClient())
    metrics.requests = requests
    stats = EngineStats(generated_tokens=spec.committed + requests, spec=spec)
    metrics.engine.metrics.on_step(stats, 0.1)
    return metrics.render().decode()


def test_what_the_server_says() -> None:
    assert parse_spec(rendered(SPEC, requests=3)) == SPEC


def test_replicas_are_added_up() -> None:
    replicas, _ = played_replicas(2)
    for client in replicas.ranks:
        client.metrics.on_step(EngineStats(generated_tokens=SPEC.committed, spec=SPEC), 0.1)
    both = SpecStats(80, [80, 76], [60, 24], 162)
    assert parse_spec(Metrics(replicas).render().decode()) == both


def test_more_than_nine_depths_keep_their_order() -> None:
    deep = SpecStats(20, list(range(30, 18, -1)), list(range(12, 0, -1)), 60)
    assert parse_spec(rendered(deep, requests=1)) == deep


def test_what_was_decided_by_lot_says_so() -> None:
    lot = SpecStats(20, [20], [9], 29, simulated=True)
    assert parse_spec(rendered(lot, requests=1)).simulated
    assert parse_spec(rendered(lot, requests=1)).since(SpecStats()).simulated


def test_difference_leaves_the_warm_up_out() -> None:
    warm_up = SpecStats(10, [10], [10], 20)
    total = SpecStats(10, [10], [10], 20)
    total.merge(SPEC)
    found = total.since(warm_up)
    assert found == SPEC
    assert found.accept_length == pytest.approx(81 / 40)
    assert found.accept_rates == pytest.approx([30 / 40, 12 / 38])
    assert total.since(SpecStats()) == total


def test_another_server() -> None:
    with pytest.raises(BenchError, match="nextn:spec_verify_steps_total"):
        parse_spec("# TYPE up gauge\nup 1.0\n")


def test_vllm_counters_of_several_engines() -> None:
    lines = ["# TYPE vllm:spec_decode_num_drafts counter"]
    for engine, drafts, first, second in ((0, 40, 30, 12), (1, 10, 5, 3)):
        labels = f'engine="{engine}",model_name="m"'
        lines += [
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}.0",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {2 * drafts}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {first + second}.0",
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="0"}} {first}.0',
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="1"}} {second}.0',
        ]
    found = parse_vllm("\n".join(lines) + "\n")
    assert found == SpecStats(50, [50, 50], [35, 15], 100)
    assert found.accept_length == 2.0
    assert found.accept_rates == pytest.approx([0.7, 0.3])
    with pytest.raises(BenchError, match="vllm:spec_decode_num_drafts"):
        parse_vllm("# TYPE up gauge\nup 1.0\n")


def test_our_own_page_in_vllm_s_names() -> None:
    found = parse_vllm(rendered(SPEC, requests=3))
    assert (found.verify_steps, found.accepted) == (40, [30, 12])
