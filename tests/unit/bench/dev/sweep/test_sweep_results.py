"""Medians, ratios, the best side, the table and the page, against numbers computed by hand."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from nextn.bench.client import Load, Reply
from nextn.bench.dev.sweep.plots import PLOTS, Curves
from nextn.bench.dev.sweep.report import write_report
from nextn.bench.dev.sweep.results import Cell
from nextn.bench.dev.sweep.table import markdown, verdict
from nextn.bench.errors import RequestError
from nextn.bench.plots import LIGHT
from nextn.stats import SpecStats


def rows_of(text: str) -> list[list[str]]:
    """The table's rows without its names, cells without blanks."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_two_sides_are_a_row_for_each_load(make_results: Any) -> None:
    text = markdown(make_results(2))
    assert rows_of(text) == [
        ["1", "100.0", "150.0", "1.50x", "1.80", "80", "50 → 50", "10.0 → 6.7"],
        ["16", "1000.0", "900.0", "0.90x", "1.80", "80", "100 → 100", "10.0 → 11.1"],
    ]
    assert "| concurrency | MTP off | 1 draft | ratio | accept length | by depth, % |" in text
    assert "### random 320/80" in text
    assert "real text: held-out Python, joined; 320 input and 80 output tokens (3200/800, scale 0.1)" in text
    assert "8 to 32 prompts a load" in text
    assert "medians of 3 rounds" in text
    assert "no side keeps a prefix cache" in text


def test_more_sides_are_rows_with_the_best_below(make_results: Any) -> None:
    text = markdown(make_results(5))
    rows = rows_of(text)
    assert rows[0] == ["1", "MTP off", "100.0", "1.00x", "-", "-", "50", "10.0"]
    assert rows[4] == ["1", "4 drafts", "90.0", "0.90x", "3.00", "80 60 40 20", "50", "11.1"]
    assert rows[5] == ["1", "best: 1 draft", "", "1.50x", "", "", "", ""]
    assert rows[11][1:4] == ["best: 2 drafts", "", "1.10x"]
    assert len(rows) == 12
    assert max(map(len, (line for line in text.splitlines() if line.startswith("|")))) <= 100


def test_ratios_are_those_of_rounds(make_results: Any) -> None:
    """A machine that becomes slower after the first round makes neither side better."""
    row = make_results(2).scenarios[0][1][0]
    for cell, speeds in zip(row.cells, ((100.0, 50.0, 40.0), (120.0, 60.0, 80.0)), strict=True):
        cell.rounds = [
            dataclasses.replace(f, output_throughput=s) for f, s in zip(cell.rounds, speeds, strict=True)
        ]
    assert [row.ratio(0), row.ratio(1)] == [1.0, 1.2]
    assert [cell.median.output_throughput for cell in row.cells] == [50.0, 80.0]


def test_at_a_rate_the_ratio_is_of_latencies(make_results: Any) -> None:
    results = make_results(3, rate=True)
    row = results.scenarios[0][1][0]
    assert row.ratio(2) == 4000 / 3998
    assert row.best == 2
    text = markdown(results)
    assert "ratio: mean latency of a request with MTP off over the side's" in text
    assert "| request rate |" in text
    assert rows_of(text)[0][0] == "0.5"


def test_equal_sides_the_first_is_best(make_results: Any) -> None:
    row = make_results(2).scenarios[0][1][1]
    row.cells[1] = row.cells[0]
    assert row.best == 0


def test_a_cell_gathers_rounds() -> None:
    replies = [Reply("ab", 9, 11, 0.0, (0.5, 1.5)), Reply("cd", 9, 11, 0.0, (0.5, 2.5))]
    cell = Cell()
    cell.add(Load([*replies, RequestError("HTTP 503", "full")], 2.0), SpecStats(10, [10], [5], 15))
    cell.add(Load(replies, 4.0), SpecStats(10, [10], [9], 19))
    assert cell.median.output_throughput == (22 / 2 + 22 / 4) / 2
    assert cell.median.mean_ttft_ms == 500
    assert cell.median.mean_tpot_ms == 150  # (1.0 + 2.0) / 2 / 10
    assert cell.median.mean_e2e_ms == 2000
    assert (cell.accept_length, cell.accept_rates) == (34 / 20, [0.7])
    assert (cell.failures, cell.first_failures) == ({"HTTP 503": 1}, {"HTTP 503": "full"})


def test_acceptance_that_is_not_known(make_results: Any) -> None:
    assert (Cell().accept_length, Cell().accept_rates) == (None, [])
    assert Cell(spec=SpecStats(10, [], [], 10)).accept_length is None  # nothing was drafted
    assert Cell(lifetime=2.5).accept_length == 2.5
    results = make_results(2)
    other = results.scenarios[0][1][0].cells[1]
    other.spec, other.lifetime = None, 2.5
    assert rows_of(markdown(results))[0][4:6] == ["2.50 (lifetime)", "-"]
    point = results.as_dict()["scenarios"][0]["points"][0]
    assert point["sides"]["1 draft"]["accept_length_of"] == "lifetime"


def test_acceptance_by_lot_is_marked(make_results: Any) -> None:
    results = make_results(2)
    cell = results.scenarios[0][1][0].cells[1]
    cell.spec.simulated = True
    assert rows_of(markdown(results))[0][4] == f"{cell.accept_length:.2f} (simulated)"
    points = results.as_dict()["scenarios"][0]["points"]
    assert [p["sides"]["1 draft"]["simulated"] for p in points] == [True, False]


def test_json(make_results: Any) -> None:
    results = make_results(3)
    found = json.loads(json.dumps(results.as_dict()))
    scenario = found["scenarios"][0]
    assert (scenario["name"], scenario["input_len"], scenario["output_len"]) == ("random", 320, 80)
    assert [(p["concurrency"], p["prompts"], p["best"]) for p in scenario["points"]] == [
        (1, 8, "1 draft"),
        (16, 32, "2 drafts"),
    ]
    one = scenario["points"][0]["sides"]["1 draft"]
    assert (one["output_throughput"], one["ratio"], one["accept_length"]) == (150.0, 1.5, 1.8)
    assert [r["output_throughput"] for r in one["rounds"]] == [75.0, 150.0, 1350.0]
    assert found["texts"]["compared"] == 12
    short = results.as_dict(details=False)["scenarios"][0]["points"][0]["sides"]["1 draft"]
    assert "rounds" not in short
    assert make_results(2, rate=True).as_dict()["scenarios"][0]["points"][1]["request_rate"] == 4


def test_a_differing_text_is_told(make_results: Any) -> None:
    results = make_results(2)
    assert verdict(results) == "8 texts of 4 prompts compared, 0 differ"
    assert results.ok
    results.identity.add(1, 0, 2, "text two", "1 draft, round 3")
    assert "9 texts of 4 prompts compared, 1 differ" in verdict(results)
    assert "prompt 2 has two texts; they differ from character 5 on" in verdict(results)
    assert not results.ok


def test_failures_are_told_by_kind(make_results: Any, add_failures: Any) -> None:
    results = make_results(2)
    add_failures(results, 1, "HTTP 503", 3)
    assert "- 1 draft at concurrency 1: 3 failed (HTTP 503), the first: the queue is full" in markdown(
        results
    )
    assert "3 requests failed" in verdict(results)
    assert (results.ok, results.as_dict()["failed"]) == (False, 3)


def test_files(make_results: Any, add_failures: Any, tmp_path: Path) -> None:
    results = make_results(3)
    add_failures(results, 1, "HTTP <503>", 1)
    results.identity.add(1, 0, 2, "text <two>", "1 draft")
    names = [file.name for file in write_report(results, tmp_path)]
    kinds = ("latency-throughput", "ratio", "ttft-tpot")
    images = [f"random-{kind}{dark}.png" for kind in kinds for dark in ("", "-dark")]
    assert names == ["results.json", "table.md", "report.html", *images]
    assert json.loads((tmp_path / "results.json").read_text()) == results.as_dict()
    assert (tmp_path / "table.md").read_text().startswith(markdown(results))
    assert len({(tmp_path / name).read_bytes() for name in images}) == 6
    page = (tmp_path / "report.html").read_text()
    assert "failed (HTTP &lt;503&gt;)" in page
    assert "&lt;two&gt;" in page
    assert "<503>" not in page
    sources = re.findall(r'src(?:set)?="data:image/png;base64,([^"]+)"', page)
    assert {base64.b64decode(s, validate=True) for s in sources} == {
        (tmp_path / name).read_bytes() for name in images
    }
    assert re.findall(r'(?:href|src|srcset)="(?!data:)', page) == []  # nothing from another host
    for cells in rows_of(markdown(results)):
        assert all(cell in page for cell in cells)


def test_plots_of_one_load_many_sides_and_rates(make_results: Any) -> None:
    results = make_results(5, rate=True)
    results.scenarios[0][1].pop()
    ((scenario, rows),) = results.scenarios
    curves = Curves(scenario.title, [side.name for side in results.sides], rows)
    for draw in PLOTS.values():
        content = draw(curves, LIGHT)
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
