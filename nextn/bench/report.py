"""Writes the demo's results into a folder: a plot, an HTML page, and JSON."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nextn.bench.completion import Step
from nextn.bench.pages import render
from nextn.bench.plots import DARK, LIGHT, latency_against_throughput
from nextn.bench.results import Point, Results
from nextn.drafting_state import drafting_words

TEMPLATE = Path(__file__).parent / "report.html.j2"
DEPTHS = 4  # draft depths in the page's table
DEPTH_COLOURS = 8  # colours in colours.css; deeper drafts share the last one


def heading(results: Results) -> list[str]:
    """Lines that say what was measured, and on which machine."""
    engine, machine = results.engine, results.machine
    drafts = "1 draft" if results.num_steps == 1 else f"{results.num_steps} drafts"
    if results.num_steps == "auto":
        drafts = "automatic draft depth"
    most = "at most " if results.questions else ""
    threads = "1 thread" if engine["threads"] == 1 else f"{engine['threads']} threads"
    return [
        f"{results.model}, {engine['dtype']} on {engine['device']}, {threads}; "
        f"MTP with {drafts}; {most}{results.max_tokens} new tokens a prompt",
        machine.line,
        *([f"native kernels: {engine['cpu_isa']}"] if "cpu_isa" in engine else []),
    ]


def notes(results: Results) -> list[str]:
    """Lines that name the loads at which automatic depth made no drafts, and why."""
    return [
        f"automatic depth at concurrency {p.concurrency}: {drafting_words(auto)}"
        for p in results.points
        if (auto := p.no_drafts) is not None
    ]


def title(points: Sequence[Point]) -> str:
    """The title, with the best ratio over the loads that had drafts. The ratio of a load without drafts is
    not due to MTP."""
    best = max((p.ratio for p in points if p.no_drafts is None), default=1.0)
    return f"The same text, up to {best:.2f} times as fast" if best >= 1.005 else "The same text"


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes results.json, a PNG and a self-contained page into `folder`; returns their paths."""
    name = f"{results.model}: latency against throughput"
    light, dark = (latency_against_throughput(name, results.points, p) for p in (LIGHT, DARK))
    files: dict[str, bytes] = {
        "latency-throughput.png": light,
        "report.html": page(results, light, dark).encode(),
        "results.json": results.as_json().encode() + b"\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def page(results: Results, light: bytes, dark: bytes) -> str:
    """The HTML page; `light` and `dark` are PNG files."""
    counts = Counter(depth for _, depth in results.completion.tokens)
    deepest = max(len(point.spec.accept_rates) for point in results.points)
    return render(
        TEMPLATE,
        results=results,
        heading=heading(results),
        rows=[page_row(point) for point in results.points],
        depths=max(1, min(DEPTHS, deepest)),
        deeper=deepest > DEPTHS,
        notes=notes(results),
        title=title(results.points),
        light=base64.b64encode(light).decode(),
        dark=base64.b64encode(dark).decode(),
        steps=[drawn(step) for step in results.completion.steps],
        legend=[(named(depth), kind(depth), n) for depth, n in sorted(counts.items())],
    )


def kind(depth: int) -> str:
    """The CSS class, in colours.css, of a token drafted at `depth`."""
    return f"d{min(depth, DEPTH_COLOURS)}"


def drawn(step: Step) -> list[tuple[str, str, str]]:
    """(text, CSS class, description) of a step's tokens. The rejected drafts come before the model's own
    token."""
    tokens = [(text, kind(depth), named(depth) + ", accepted" * (depth > 0)) for text, depth in step.tokens]
    own = tokens[-1:] if step.tokens and step.tokens[-1][1] == 0 else []
    rejected = [
        (text.replace("\n", "↵").replace("\t", "⇥"), f"rejected {kind(depth)}", f"{named(depth)}, rejected")
        for text, depth in step.rejected
    ]
    return [*tokens[: len(tokens) - len(own)], *rejected, *own]


def named(depth: int) -> str:
    return f"draft {depth}" if depth else "the model's own"


class PageRow(NamedTuple):
    """A row of the page's table. cells: (column, number). rates: acceptance at the first DEPTHS depths. all:
    acceptance at every depth, as text. none: why there were no drafts, or ""."""

    cells: list[tuple[str, str]]
    rates: list[float]
    all: str
    none: str


def page_row(point: Point) -> PageRow:
    sides = [
        (f"{name} {side_name}", text)
        for side_name, side in (("without MTP", point.without), ("with MTP", point.with_mtp))
        for name, text in (
            ("tok/s", f"{side.output_throughput:.1f}"),
            ("TTFT, ms,", f"{side.mean_ttft_ms:.0f}"),
            ("TPOT, ms,", f"{side.mean_tpot_ms:.1f}"),
        )
    ]
    spec, none = point.spec, ""
    if (auto := point.no_drafts) is not None:
        none = f"none: drafts would make {auto.gain:.2f}x"
    cells = [
        ("requests at once", f"{point.concurrency}"),
        *sides,
        ("ratio", f"{point.ratio:.2f}x"),
        ("accept length", f"{spec.accept_length:.2f}"),
    ]
    every = ", ".join(f"draft {i}: {rate:.0%}" for i, rate in enumerate(spec.accept_rates, 1))
    return PageRow(cells, spec.accept_rates[:DEPTHS], every, none)
