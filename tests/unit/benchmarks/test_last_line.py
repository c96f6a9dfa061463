from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_printed_last_and_kept_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tell = importlib.import_module("last_line").tell
    result = {"model": "m", "rows": [1, 2.5]}
    tell("some-theme", result, None)
    assert not list(tmp_path.iterdir())
    tell("some-theme", result, tmp_path / "a folder" / "to be made")
    (file,) = tmp_path.rglob("*.json")
    assert file.name.startswith("some-theme_")
    assert json.loads(file.read_text()) == result
    assert capsys.readouterr().out == 2 * file.read_text()
