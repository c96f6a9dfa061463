"""The benchmarks of automatic depth in short forms: the result's shape and its arithmetic, never a speed."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.native_kernels import built_levels

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FAKE = ["--model-path", "fake:1,0.75", "--threads", "1"]


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A script's main() with these options -> what its last line says."""

    def result(script: ModuleType, *options: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *options])
        assert script.main() == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["machine"]["cores"] >= 1
        return found

    return result


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_cold_start(run: Run, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server with automatic depth, beside one without that is made up."""
    cold_start = script("cold_start")
    run_start = cold_start.run_start

    def start(args: argparse.Namespace, side: str, *rest: Any) -> Any:
        return run_start(args, side, *rest) if side == "auto" else cold_start.Start(50, 1.0, {})

    monkeypatch.setattr(cold_start, "run_start", start)
    options = ["--starts", "1", "--seconds", "2", "--concurrency", "3", "--output", str(tmp_path)]
    found = run(cold_start, *FAKE, *options)
    (row,) = found["loads"]
    assert row["requests"] == 3
    (auto,), (none,) = row["tokens"]["auto"], row["tokens"]["none"]
    assert row["ratio"] == auto / none
    assert row["each_time"] == [auto / none]
    assert found["claim"]["holds"] is (row["ratio"] >= 0.97)
    assert found["engine"]["drafts"] == "auto"
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("cold-start_")
    assert json.loads(file.read_text()) == found


def test_load_by_turns(run: Run, script: Any) -> None:
    found = run(script("load_by_turns"), *FAKE, "--many", "3", "--seconds", "0.2", "--times", "2")
    assert [row["requests"] for row in found["loads"]] == [3, 1]
    for row in found["loads"]:
        assert set(row["tokens_per_s"]) == {"0", "2", "auto"}
        assert min(row["tokens_per_s"].values()) > 0
        better = max(1.0, row["fixed_over_none"])
        assert row["auto_over_better"] == pytest.approx(row["auto_over_none"] / better)
        assert len(row["settled_after_s"]) == len(row["drafting_in_the_end"]) == 2
    assert found["claim"]["least"] == min(row["auto_over_better"] for row in found["loads"])


def test_auto_everywhere_goes_on_where_it_stopped(
    run: Run, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with a real run; what comes later is made up."""
    everywhere, asked = script("auto_everywhere"), []
    options = ["--cpu-isa", built_levels()[0], "--threads", "1", "--rounds", "1", "--times", "1"]
    options += ["--output", str(tmp_path), "--concurrency"]
    (first,) = run(everywhere, *options, "1")["cells"]
    assert (first["level"], first["threads"], first["requests"]) == (built_levels()[0], 1, 1)

    def run_depths(_: argparse.Namespace, level: str, threads: int, loads: list[int]) -> list[Any]:
        asked.append((level, threads, loads))
        return [{**first, "requests": 2, "auto_over_none": 0.9}]

    monkeypatch.setattr(everywhere, "run_depths", run_depths)
    found = run(everywhere, *options, "1,2")
    assert asked == [(built_levels()[0], 1, [2])]
    assert found["cells"][0] == first  # not measured again
    assert [cell["requests"] for cell in found["cells"]] == [1, 2]
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == found
    assert found["summary"]["auto_over_none"]["least"] == min(c["auto_over_none"] for c in found["cells"])


def test_a_cell_and_their_summary(script: Any) -> None:
    everywhere = script("auto_everywhere")
    over_none = {"0": 1.0, "1": 1.2, "2": 1.1, "auto": 1.18}
    cell = everywhere.cell_of("avx2", 2, {"requests": 4, "over_none": over_none, "of_best_fixed": 0.983})
    ratios = {"auto_over_none": 1.18, "auto_over_best": 0.983}
    assert cell == {"level": "avx2", "threads": 2, "requests": 4, **ratios, "best": "1"}
    worse = {**cell, "auto_over_none": 0.97, "auto_over_best": 0.97}
    assert everywhere.summary([cell, worse]) == {
        "auto_over_none": {"least": 0.97, "under_0.98": 1, "under_0.99": 1},
        "auto_over_best": {"least": 0.97, "under_0.98": 1, "under_0.99": 2},
    }


def test_cells_of_other_settings_are_not_mixed(script: Any, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"settings": {"rounds": 2}, "cells": [{"level": "avx2"}]}))
    read = script("auto_everywhere").read_cells
    assert read(file, {"rounds": 2}) == [{"level": "avx2"}]
    assert read(tmp_path / "none.json", {"rounds": 2}) == []
    with pytest.raises(ValueError, match="another --output"):
        read(file, {"rounds": 3})


def test_demos_by_level(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell for each number of requests; what a demo that fails said last is told."""
    levels = script("demo_levels")

    def demo(command: list[str], **options: Any) -> Any:
        assert command[command.index("--cpu-isa") + 1] == "avx2"
        folder = Path(command[command.index("--output-dir") + 1])
        points = [{"concurrency": n, "ratio": 1.0 + n, "accept_length": 2.0, "auto": None} for n in (1, 4)]
        (folder / "results.json").write_text(json.dumps({"points": points}))
        return SimpleNamespace(returncode=codes.pop(), stdout="3 differ")

    codes = [1, 0]
    monkeypatch.setattr(levels.subprocess, "run", demo)
    found = levels.run_demo("nextn-tiny", "avx2", 2, quick=True)
    assert [(cell["level"], cell["threads"], cell["requests"], cell["ratio"]) for cell in found] == [
        ("avx2", 2, 1, 2.0),
        ("avx2", 2, 4, 5.0),
    ]
    with pytest.raises(levels.BenchError, match="3 differ"):
        levels.run_demo("nextn-tiny", "avx2", 2, quick=True)


def test_settled_after(script: Any) -> None:
    settled_after = script("load_by_turns").settled_after
    assert settled_after([(0.1, True), (0.2, True)]) == 0.0
    assert settled_after([(0.1, True), (0.2, False), (0.3, True), (0.4, True)]) == 0.2


def test_a_claim_is_checked(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check_claim = script("depth_claims").check_claim
    assert check_claim("auto over none", {"1": 0.97, "4": 1.1})["holds"] is True
    assert check_claim("auto over none", {"1": 1.0, "4": 0.9})["holds"] is False
    assert capsys.readouterr().out.splitlines() == [
        "claim: auto over none >= 0.97: yes",
        "claim: auto over none >= 0.97: NO: 0.900 at 4",
    ]


@pytest.mark.parametrize(("reader", "text"), [("positives", "1,0"), ("seconds", "nan"), ("seconds", "0")])
def test_bad_numbers_are_refused(script: Any, reader: str, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        getattr(script("depth_claims"), reader)(text)
