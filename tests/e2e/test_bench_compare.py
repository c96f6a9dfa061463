"""`nextn bench compare`: servers in turns, every text compared. (On real engines: test_demo.py.)"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.server_process import scripted_python

from nextn.cli import main
from nextn.config import EMBEDDED, model_folder

COMPARE = ["bench", "compare"]


def test_without_and_with_mtp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripted engines with the embedded model's tokenizer."""
    monkeypatch.setenv("SCRIPT_TOKENIZER", str(model_folder(EMBEDDED)))
    monkeypatch.setattr(sys, "executable", scripted_python(tmp_path))
    words = [
        "--num-steps", "0,2", "--scenario", "summarization", "--scale", "0.02", "--concurrency", "2",
        "--num-prompts", "2", "--rounds", "1", "--temperature", "0.7", "--output-dir", str(tmp_path / "out"),
    ]  # fmt: skip
    code = main([*COMPARE, *words, "--", "--threads", "1"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["texts"] == {
        "prompts": 2, "compared": 4, "differ": 0, "first_difference": None, "agreement_with_first_side": {},
    }  # fmt: skip
    assert found["fresh_by"] == "no prefix cache"
    (scenario,) = found["scenarios"]
    assert (scenario["input_len"], scenario["output_len"]) == (41, 16)
    (point,) = scenario["points"]
    off, on = point["sides"]["MTP off"], point["sides"]["2 drafts"]
    assert (off["accept_length"], off["acceptance"]) == (None, [])
    assert 2.0 < on["accept_length"] <= 3.0
    assert len(on["acceptance"]) == 2
    assert on["ratio"] > 0
    detailed = json.loads((tmp_path / "out" / "results.json").read_text())
    (round_,) = detailed["scenarios"][0]["points"][0]["sides"]["2 drafts"]["rounds"]
    assert (round_["input_tokens"], round_["output_tokens"]) == (2 * 41, 2 * 16)
    assert (tmp_path / "out" / "table.md").read_text().split("\n\n")[0] in out
    for name in (
        "report.html",
        "summarization-ratio.png",
        "summarization-ttft-tpot-dark.png",
        "server-1-mtp-off.log",
    ):
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert "\r" not in err  # no bar: stderr is not a terminal


def test_an_option_that_the_server_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--side", "a=--pipeline-parallel-size 8", "--base-url-side", "b=http://127.0.0.1:9"]
    assert main([*COMPARE, *sides, "--output-dir", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "--pipeline-parallel-size 8 is not supported" in err
    assert "the server a ended while starting (exit code 2)" in err.splitlines()[-1]
