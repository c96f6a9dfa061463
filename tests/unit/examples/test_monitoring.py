"""examples/monitoring: what the dashboard and the alerts name is in /metrics, with its labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.stats import EngineStats, SpecStats

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "monitoring"
NAMES = re.compile(r"\b(?:nextn|process)[:_]\w+")
LABELS = re.compile(r"(?:by \(|[{,] ?)(\w+)(?:=|\)|,)")
SCRAPED = {"instance", "job"}  # Prometheus adds them


def dashboard() -> dict[str, Any]:
    given: dict[str, Any] = json.loads((FOLDER / "grafana" / "nextn.json").read_text())
    return given


def expressions() -> list[str]:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]] + alerts


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """Names of samples and their labels, after a little of everything."""
    metrics = Metrics(EngineClient())
    metrics.engine.metrics.on_step(EngineStats(spec=SpecStats(1, [1], [1], 2, [0, 1])), 1.0)
    metrics.responses.labels("/x", "GET", "200").inc()
    found: dict[str, set[str]] = {}
    for line in metrics.render().decode().splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = set(re.findall(r'(\w+)="', rest)) if rest else set()
            found.setdefault(name.split(" ")[0], set()).update(labels)
    return found


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_is_there(expression: str, shown: dict[str, set[str]]) -> None:
    names = NAMES.findall(expression)
    assert names or expression.startswith("up{")
    assert [name for name in names if name not in shown] == []
    labels = set(LABELS.findall(expression)) - SCRAPED
    assert labels <= set().union(*(shown[name] for name in names))


def test_the_dashboard_shows_all_that_matters(shown: dict[str, set[str]]) -> None:
    named = {name for expression in expressions() for name in NAMES.findall(expression)}
    left_out = {
        name for name in shown if name.startswith("nextn:") and not name.endswith(("_created", "_sum"))
    }
    left_out -= named | {name.removesuffix("_bucket") + "_count" for name in named}
    assert left_out == {
        # shown as a ratio or a rate of something else
        "nextn:cache_hit_rate", "nextn:gen_throughput", "nextn:num_used_tokens", "nextn:max_total_num_tokens",
        "nextn:spec_accept_rate", "nextn:spec_committed_tokens_total", "nextn:spec_simulated",
        # of interest where there are several ranks
        "nextn:engine_busy_seconds_total", "nextn:rank_wait_seconds_total",
        "nextn:rank_sent_bytes_total",
    }  # fmt: skip


def test_the_dashboard_is_whole() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_files_fit_together() -> None:
    compose = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())
    for service in compose["services"].values():
        for volume in service["volumes"]:
            assert (FOLDER / volume.split(":")[0]).is_file(), volume
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert all((FOLDER / name).is_file() for name in scraped["rule_files"])
    assert {c["job_name"] for c in scraped["scrape_configs"]} == {"nextn"}
