"""nextn eval: what it refuses and how it says so; the metrics of a load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nextn.cli import eval as command
from nextn.cli import main
from nextn.eval import run, tasks
from nextn.stats import SpecStats


def test_the_command_knows_the_shipped_tasks() -> None:
    assert command.TASKS == tasks.SHIPPED
    assert all((tasks.FOLDER / f"{name}.yaml").is_file() for name in tasks.SHIPPED)


def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "nextn.eval.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["eval", "--output-dir", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("nextn eval: error: nextn eval needs lm-eval (")
    assert "pip install 'nextn[eval]'" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--base-url", "http://a", "http://b", "http://c"], "--base-url has 3 servers"),
        (["--base-url", "http://a", "--", "--threads", "1"], "--threads: options after -- are for servers"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *words]) == 2
    assert message in capsys.readouterr().err


def test_accept_length_counts_the_drafts_that_held() -> None:
    before = ("nextn", SpecStats(10, [10, 10], [8, 4], 22))
    after = ("nextn", SpecStats(30, [30, 30], [20, 12], 70))
    assert run.accept_length(before, after) == 1 + (12 + 8) / 20
    assert run.accept_length(before, before) is None
    assert run.accept_length(None, after) is None
    plain = ("nextn", SpecStats(10, [], [], 10))
    assert run.accept_length(("nextn", SpecStats()), plain) is None
