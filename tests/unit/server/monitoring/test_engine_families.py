"""The engines' metrics: one engine has no labels, several have dp_rank."""

from __future__ import annotations

from array import array

from prometheus_client.parser import text_string_to_metric_families
from support.engine_stats import stats
from support.played_replicas import played_replicas

from nextn.expert_load import ShardRows
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.stats import EngineStats, TransferStats
from nextn.terminal.scrape import Scrape
from nextn.waits import Phase, Waits


def test_one_engine_has_no_label() -> None:
    text = Metrics(EngineClient()).render().decode()
    assert "nextn:num_running_reqs 0.0" in text
    assert "dp_rank" not in text


def test_several_have_one() -> None:
    replicas, _ = played_replicas(2)
    replicas.ranks[0].metrics.on_step(stats(4, 1), 1.0)
    replicas.ranks[1].metrics.on_step(stats(5, 2), 1.0)
    replicas.ranks[1].detach("dead")
    text = Metrics(replicas).render().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {(s.name, *s.labels.values()): s.value for s in samples}
    assert [found["nextn:engine_up", rank] for rank in "01"] == [1, 0]
    assert [found["nextn:spec_verify_steps_total", rank] for rank in "01"] == [4, 5]
    assert found["nextn:spec_draft_tokens_total", "0", "1"] == 4
    assert found["nextn:num_requests_total",] == 0
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    # nextn top adds them up.
    scrape = Scrape.read(text, 0.0)
    assert scrape.get("engine_up") == 1
    assert scrape.get("generation_tokens_total") == 8 + 15
    assert sum(scrape.by_position("spec_accepted_tokens")) == sum(
        s.value for s in samples if s.name == "nextn:spec_accepted_tokens_total"
    )


def imbalances(metrics: Metrics) -> list[float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return [s.value for f in families for s in f.samples if s.name == "nextn:expert_load_imbalance"]


def test_the_balance_of_experts() -> None:
    """Engines that share them have one; replicas have each their own."""
    replicas, _ = played_replicas(2)
    metrics = Metrics(replicas)
    assert imbalances(metrics) == []
    for client, rows in zip(replicas.ranks, ([6, 2], [0, 4]), strict=True):
        client.metrics.on_step(EngineStats(sent=5, shard_rows=ShardRows(2, array("d", rows).tobytes())), 1.0)
    assert imbalances(metrics) == [1.5, 2.0]
    for client in replicas.ranks:
        client.partners = replicas.ranks
    assert imbalances(metrics) == [1.0, 1.0]
    replicas.ranks[1].metrics.engine_gone()
    assert imbalances(metrics) == [1.5]
    text = metrics.render().decode()
    assert 'nextn:rank_sent_bytes_total{dp_rank="1"} 5.0' in text  # as all totals, over a restart


def test_what_ranks_wait_for() -> None:
    """By phase and reason, over a restart. The total has no labels."""
    client = EngineClient()
    text = Metrics(client).render().decode()
    assert "nextn:rank_wait_seconds_total 0.0" in text
    assert "rank_step" not in text
    decode = Phase(8.0, Waits(step=1.0, combine=0.5, others=1.0))
    client.metrics.on_step(EngineStats(phases={"decode": decode, "prefill": Phase(2.0, Waits(0.25))}), 0.1)
    client.metrics.engine_gone()
    client.metrics.on_step(EngineStats(phases={"decode": decode}), 0.1)
    text = Metrics(client).render().decode()
    for line in (
        "rank_wait_seconds_total 3.25", 'rank_step_seconds_total{phase="decode"} 16.0',
        'rank_step_seconds_total{phase="prefill"} 2.0',
        'rank_phase_wait_seconds_total{phase="decode",reason="step"} 2.0',
        'rank_phase_wait_seconds_total{phase="decode",reason="combine"} 1.0',
        'rank_phase_wait_seconds_total{phase="decode",reason="dispatch"} 0.0',
        'rank_phase_wait_seconds_total{phase="prefill",reason="step"} 0.25',
    ):  # fmt: skip
        assert f"nextn:{line}\n" in text
    assert 'phase="idle"' not in text


def test_transfers() -> None:
    client = EngineClient()
    assert "nextn:transfer" not in Metrics(client).render().decode()
    transfer = TransferStats(active=2, finished=3, failed=2, fallbacks=1, pages=9, bytes=99, seconds=0.5)
    client.metrics.on_step(EngineStats(transfer=transfer), 0.1)
    text = Metrics(client).render().decode()
    for line in (
        "transfer_active 2.0", "transfer_finished_total 3.0", "transfer_failed_total 2.0",
        "transfer_fallbacks_total 1.0", "transfer_pages_total 9.0", "transfer_bytes_total 99.0",
        "transfer_seconds_total 0.5",
    ):  # fmt: skip
        assert f"nextn:{line}\n" in text
