"""The demo's table, what it says of a load that is slower, and the commands after it."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from support.demo_results import point

from nextn.bench import summary
from nextn.bench.results import Results
from nextn.drafting_state import DraftingState, drafting_words

PAGE = Path(summary.__file__).parents[1] / "server" / "http" / "page" / "presets.js"
NONE = DraftingState(False, 16, 0.94, "")


def printed(results: Results, width: int = 100, colours: bool = False) -> list[str]:
    system = "standard" if colours else None
    out = Console(
        file=io.StringIO(), width=width, force_terminal=colours, color_system=system, highlight=False
    )  # fmt: skip
    with out.capture() as capture:
        summary.print_results(results, out)
    return capture.get().splitlines()


def rows_of(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines if line.strip()[:1].isdigit() and "texts" not in line]


def test_the_table(results: Results) -> None:
    lines = printed(results)
    assert "nextn-tiny, float32 on cpu, 2 threads; MTP with 2 drafts" in lines[0]
    assert "AMD EPYC, 2 cores; torch 2.13.0" in lines[1]
    rows = rows_of(lines)
    assert rows[0] == ["1", "50.0", "75.0", "1.50x", "51", "55", "20.0", "12.9", "2.41", "▇▅", "81%", "60%"]
    assert rows[1][:4] == ["16", "1268.5", "1335.0", "1.05x"]
    assert "64 texts of 32 prompts compared, 0 differ" in lines
    assert "tok/s with MTP over without: 1.50x at 1, 1.05x at 16 requests at once" in lines


def test_it_fits_100_columns_with_eight_depths_that_always_hold(results: Results) -> None:
    for p in results.points:
        p.spec.proposed[:] = p.spec.accepted[:] = [100] * 8
    lines = printed(results)
    assert max(map(len, lines)) <= 100
    assert rows_of(lines)[1][-5:] == ["████", *["100%"] * 4]


def test_a_narrow_terminal_goes_without_ttft(results: Results) -> None:
    lines = printed(results, 80)[2:-3]
    assert max(map(len, lines)) <= 80
    assert not any("TTFT" in line or "…" in line for line in lines)
    assert rows_of(lines)[0][:5] == ["1", "50.0", "75.0", "1.50x", "20.0"]


def test_colours(results: Results) -> None:
    plain, coloured = printed(results), printed(results, colours=True)
    assert "\x1b" not in "".join(plain)
    assert [Text.from_ansi(line).plain.rstrip() for line in coloured] == [line.rstrip() for line in plain]
    assert any("\x1b[32m1.50x" in line for line in coloured)


def test_the_level_of_the_native_kernels_is_named(results: Results) -> None:
    results.engine["cpu_isa"] = "avx2"
    assert printed(results)[2] == "native kernels: avx2"


def test_a_difference(results: Results) -> None:
    results.texts.add(5, "text five", "with MTP, round 2")
    shown = "\n".join(printed(results))
    assert "65 texts of 32 prompts compared, 1 differ" in shown
    assert "differ from character 5" in shown


def test_where_automatic_depth_made_no_drafts(results: Results) -> None:
    results.points[1] = dataclasses.replace(results.points[1], auto=NONE)
    lines = printed(results)
    assert rows_of(lines)[1][-4:] == ["none:", "would", "be", "0.94x"]
    assert f"automatic depth at concurrency 16: {drafting_words(NONE)}" in lines


@pytest.mark.parametrize(
    ("with_mtp", "auto", "why"),
    [
        ((950.0, 10.0, 1.0), NONE, "both servers decode without drafts at this load"),
        (
            (950.0, 90.0, 0.9),
            None,
            "decoding is faster (TPOT 1.0 -> 0.9 ms), prompts are slower (TTFT 10 ",
        ),
        (
            (950.0, 9.0, 0.9),
            None,
            "neither decoding (TPOT 1.0 -> 0.9 ms) nor prompts (TTFT 10 -> 9 ms) took longer",
        ),
        (
            (800.0, 10.0, 1.2),
            None,
            "a step with drafts made 2.41 tokens and took 2.89 times as long",
        ),
    ],
)
def test_why_a_load_is_slower(
    with_mtp: tuple[float, ...], auto: DraftingState | None, why: str, results: Results
) -> None:
    slower = dataclasses.replace(point(16, (1000.0, 10.0, 1.0), with_mtp), auto=auto)
    results.points[1] = slower
    lines = printed(results)
    (line,) = [line for line in lines if why in line]
    assert line.startswith(f"{slower.ratio:.2f}x at 16: {why}")
    assert lines[-1].startswith("(a round took at most 10.0 s; ")
    assert ("--speculative-num-steps auto" in line) == (with_mtp[2] > 1)


def test_a_faster_load_needs_no_explanation(results: Results) -> None:
    assert not any("a round took" in line for line in printed(results))


def test_the_next_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    activate, serve, curl = summary.next_commands("nextn-tiny", "nextn-tiny", {})
    assert (activate, serve) == (". .venv/bin/activate", "nextn serve")
    words = shlex.split(curl)
    assert words[:2] == ["curl", "http://127.0.0.1:30000/v1/completions"]
    assert json.loads(words[-1])["prompt"] == summary.EXAMPLE
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert summary.next_commands("m", "m", {})[0] == f". {tmp_path}/.venv/bin/activate"
    active = {"VIRTUAL_ENV": str(tmp_path / ".venv")}
    assert summary.next_commands("a b/m", "m", active)[0] == "nextn serve --model-path 'a b/m'"
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert len(summary.next_commands("m", "m", {})) == 2
    curl = shlex.split(summary.next_commands("m", "m", {}, chat=True)[-1])
    assert curl[1].endswith("/v1/chat/completions")
    assert json.loads(curl[-1])["messages"][0]["content"] == summary.questions()[0]


def test_the_page_has_the_same_prompt() -> None:
    written = "'" + summary.EXAMPLE.replace("\n", "\\n") + "'"
    assert f'["Read a file", {written}],' in PAGE.read_text()
