"""The tutorial notebook runs from its first cell to its last on the embedded model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "mtp_tutorial.ipynb"
SMALL = {"TUTORIAL_CONCURRENCIES": "4", "TUTORIAL_NUM_PROMPTS": "4", "TUTORIAL_OUTPUT_LEN": "8"}


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def text(notebook: dict[str, Any]) -> str:
    return "".join("".join(output.get("text", [])) for output in outputs(notebook))


def pictures(notebook: dict[str, Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    before = NOTEBOOK.read_bytes()
    out = tmp_path / "out.ipynb"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "execute.py"), "--output", str(out)],
        capture_output=True, text=True, timeout=240,
        env={**os.environ, **SMALL, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert NOTEBOOK.read_bytes() == before
    found = json.loads(out.read_text())
    assert "\n8 texts, 0 differ\n" in text(found)
    assert text(found).count("Successful requests:                     4") == 2
    assert re.search(r"^ +4 +[\d.]+ +[\d.]+ +[\d.]+x +[12]\.\d\d$", text(found), re.MULTILINE)
    assert pictures(found) == 1
    assert str(tmp_path) not in out.read_text()


def test_the_tracked_one_has_its_outputs_and_nobody_s_paths() -> None:
    found = json.loads(NOTEBOOK.read_text())
    assert " texts, 0 differ\n" in text(found)
    assert pictures(found) == 1
    assert not [output for output in outputs(found) if output["output_type"] == "error"]
    assert all(cell.get("execution_count", 1) for cell in found["cells"])
    paths = set(re.findall(r"(?<![\w.:/])/[a-z]\w+/[\w./-]+", text(found)))
    assert paths == {"/tmp/server-30000.log"}
    assert len(NOTEBOOK.read_bytes()) < 100_000
