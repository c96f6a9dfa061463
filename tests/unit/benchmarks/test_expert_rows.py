"""The script that says what FP8 rows of experts change: both formats are measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from support.native_kernels import built_levels

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    built_levels()  # skips where there are no kernels
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    words = ["--prompts", "1", "--tokens", "2", "--drafts", "1"]
    monkeypatch.setattr(sys, "argv", ["expert_rows.py", *words])
    assert importlib.import_module("expert_rows").main() == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    bf16, fp8 = result["table"]
    assert (bf16["rows"], fp8["rows"]) == ("bf16", "fp8")
    assert bf16["perplexity"] != fp8["perplexity"]
    assert 1 <= fp8["accept_length"] <= 2
