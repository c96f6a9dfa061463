"""`nextn bench compare` as people run it: real servers in turns, every text compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMPARE = [sys.executable, "-m", "nextn", "bench", "compare"]


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMPARE, *words], capture_output=True, text=True, timeout=120)


def test_without_and_with_mtp_on_the_embedded_model(tmp_path: Path) -> None:
    done = compare(
        "--num-steps", "0,2", "--scenario", "code", "summarization", "--scale", "0.02", "--output-len", "12",
        "--concurrency", "2", "--num-prompts", "2", "--rounds", "1", "--temperature", "0.7",
        "--output-dir", str(tmp_path), "--", "--threads", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["texts"] == {
        "prompts": 4, "compared": 8, "differ": 0, "first_difference": None, "agreement_with_first_side": {},
    }  # fmt: skip
    assert found["fresh_by"] == "no prefix cache"
    code, summarization = found["scenarios"]
    assert (summarization["input_len"], summarization["output_len"]) == (41, 16)
    for scenario in (code, summarization):
        (point,) = scenario["points"]
        off, on = point["sides"]["MTP off"], point["sides"]["2 drafts"]
        assert (off["accept_length"], off["acceptance"]) == (None, [])
        assert 1.0 < on["accept_length"] <= 3.0
        assert len(on["acceptance"]) == 2
        assert on["ratio"] > 0
    detailed = json.loads((tmp_path / "results.json").read_text())
    (round_,) = detailed["scenarios"][1]["points"][0]["sides"]["2 drafts"]["rounds"]
    assert (round_["input_tokens"], round_["output_tokens"]) == (2 * 41, 2 * 16)
    assert (tmp_path / "table.md").read_text().split("\n\n")[0] in done.stdout
    for name in ("report.html", "code-ratio.png", "summarization-ttft-tpot-dark.png", "server-1-mtp-off.log"):
        assert (tmp_path / name).stat().st_size > 0
    assert "\r" not in done.stderr  # no bar: stderr is not a terminal


def test_an_option_that_the_server_refuses(tmp_path: Path) -> None:
    done = compare(
        "--side", "a=--pipeline-parallel-size 8", "--base-url-side", "b=http://127.0.0.1:9",
        "--output-dir", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert "--pipeline-parallel-size 8 is not supported" in done.stderr
    assert "the server a ended while starting (exit code 2)" in done.stderr.splitlines()[-1]
