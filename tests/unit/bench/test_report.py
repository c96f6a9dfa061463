"""The folder of the demo: JSON, the plot and the page."""

from __future__ import annotations

import base64
import dataclasses
import html.parser
import json
import re
import struct
from pathlib import Path

from nextn.bench.plots import DARK, latency_against_throughput
from nextn.bench.report import kind, page, title, write_report
from nextn.bench.results import Point, Results, Side
from nextn.drafting_state import DraftingState, drafting_words
from nextn.stats import SpecStats

VOID = {"meta", "source", "img", "br"}


def png_size(content: bytes) -> tuple[int, int]:
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


class Page(html.parser.HTMLParser):
    """Checks that tags are balanced; gathers texts by class and what is loaded from elsewhere."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.found: list[tuple[str, str]] = []  # class, text
        self.sources: list[str] = []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.sources += [v or "" for k, v in attrs if k in ("src", "srcset", "href")]
        if tag not in VOID:
            self.open.append((tag, named.get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.found.append((self.open[-1][1] if self.open else "", data))

    def of(self, *classes: str) -> list[str]:
        return [text for name, text in self.found if name in classes]


def test_sides_stand_for_their_median(results: Results) -> None:
    first = results.points[0].without.rounds[0]
    rounds = [dataclasses.replace(first, output_throughput=x) for x in (10.0, 90.0, 20.0)]
    side = Side(rounds)
    assert side.output_throughput == 20.0
    assert Point(1, 6, side, results.points[0].with_mtp, SpecStats()).ratio == 75.0 / 20.0


def test_the_page_names_kernels_and_loads_without_drafts(results: Results) -> None:
    results.engine["cpu_isa"] = "avx2"
    auto = DraftingState(False, 16, 0.94, "the reason")
    results.points[1] = dataclasses.replace(results.points[1], auto=auto)
    soft = Page(page(results, b"", b"")).of("soft")
    assert "native kernels: avx2" in soft
    assert f"automatic depth at concurrency 16: {drafting_words(auto)}." in soft
    first, second = (point["auto"] for point in json.loads(results.as_json())["points"])
    assert (first, second) == (None, dataclasses.asdict(auto))


def test_json_is_one_line_with_every_figure(results: Results) -> None:
    line = results.as_json()
    assert "\n" not in line
    found = json.loads(line)
    assert [p["concurrency"] for p in found["points"]] == [1, 16]
    one = found["points"][0]
    assert (one["ratio"], one["accept_length"], one["acceptance"]) == (1.5, 2.41, [0.81, 0.6])
    assert one["without_mtp"]["mean_tpot_ms"] == 20.0
    assert one["with_mtp"]["rounds"][0]["ttft_ms"]["mean"] == 55.0
    assert found["texts"] == {"prompts": 32, "compared": 64, "differ": 0, "first_difference": None}
    known = {"cpu": "AMD EPYC", "cores": 2, "python": "3.11.7", "torch": "2.13.0", "level": ""}
    assert found["machine"] == known
    results.texts.add(5, "other", "somewhere")
    first = json.loads(results.as_json())["texts"]["first_difference"]
    assert (first["prompt"], first["first"], first["other"]) == (5, "text 5", "other")


def test_files(results: Results, tmp_path: Path) -> None:
    files = write_report(results, tmp_path)
    assert [f.name for f in files] == ["latency-throughput.png", "report.html", "results.json"]
    width, height = png_size(files[0].read_bytes())
    assert width > 1000
    assert height > 500
    assert json.loads(files[2].read_text()) == json.loads(results.as_json())
    parsed = Page(files[1].read_text())
    kinds = [source.partition(",")[0] for source in parsed.sources]
    assert kinds == ["data:image/png;base64"] * 2  # and nothing from another host
    for source in parsed.sources:
        png_size(base64.b64decode(source.partition(",")[2], validate=True))


def test_page(results: Results) -> None:
    parsed = Page(page(results, b"light", b"dark"))
    text = "".join(text for _, text in parsed.found)
    assert "The same text, up to 1.50 times as fast" in text
    assert "64 texts of 32 prompts compared, 0 differ." in text
    assert "10 of the 32 prompts were sampled" in text
    assert "def f(a):\n" in text
    # Every token is there, unharmed.
    kinds = ("d0", "d1", "d2", "d3", "d7", "rejected d4")
    coloured = [found for found in parsed.found if found[0] in kinds]
    legend, tokens = coloured[:5], coloured[5:]
    assert tokens == [
        ("d0", "    return"),
        ("d1", " a"), ("d2", " <b>"), ("d3", "&"), ("rejected d4", "↵#"), ("d0", "\n"),
        ("d7", " x"),
    ]  # fmt: skip
    assert [t for _, t in legend] == ["the model's own", *(f"draft {d}" for d in (1, 2, 3, 7))]


def test_the_title_credits_drafts_with_what_they_made(results: Results) -> None:
    """A load without drafts may be faster by chance."""
    fast, slow = results.points
    none = dataclasses.replace(fast, auto=DraftingState(False, 1, 0.94, ""))
    assert title([none, slow]) == "The same text, up to 1.05 times as fast"
    assert title([none]) == "The same text"


def test_the_page_shows_four_depths_and_names_all(results: Results) -> None:
    """Depths that have no colour of their own share the last one."""
    assert [kind(depth) for depth in (0, 1, 8, 9, 16)] == ["d0", "d1", "d8", "d8", "d8"]
    one, many = results.points
    one.spec.proposed[:], one.spec.accepted[:] = [100] * 6, [90, 70, 50, 30, 20, 10]
    results.points[1] = dataclasses.replace(many, auto=DraftingState(False, 16, 0.94, ""))
    made = page(results, b"", b"")
    shown = ["90 %", "70 %", "50 %", "30 %"]
    assert Page(made).of("rate") == shown
    assert re.findall(r'class="b(\d)" style="width: (\d+)%"', made) == [
        ("1", "90"), ("2", "70"), ("3", "50"), ("4", "30"),
    ]  # fmt: skip
    assert "draft 5: 20%, draft 6: 10%" in made
    assert "Drafts go deeper than 4" in made
    assert Page(made).of("depths") == ["none: drafts would make 0.94x"]


def test_page_with_a_difference(results: Results) -> None:
    results.texts.add(5, "text <5>", "with MTP, round 2")
    text = "".join(text for _, text in Page(page(results, b"", b"")).found)
    assert "Two texts where there should be one" in text
    assert "times as fast" not in text
    assert "'<5>'" in text


def test_plot_takes_one_point_and_equal_points(results: Results) -> None:
    png_size(latency_against_throughput("one", results.points[:1], DARK))
