"""The demo's results in a folder: a plot, a page, and JSON."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path

from nextn.bench.pages import render
from nextn.bench.plots import DARK, LIGHT, latency_against_throughput
from nextn.bench.results import Point, Results

TEMPLATE = Path(__file__).parent / "report.html.j2"
DEPTH_COLOURS = 4  # the page has so many; deeper drafts take them in turn


def heading(results: Results) -> list[str]:
    """What was measured, and on what machine."""
    engine, machine = results.engine, results.machine
    drafts = "1 draft" if results.num_steps == 1 else f"{results.num_steps} drafts"
    if results.num_steps == "auto":
        drafts = "as many drafts as pay"
    threads = "1 thread" if engine["threads"] == 1 else f"{engine['threads']} threads"
    return [
        f"{results.model}, {engine['dtype']} on {engine['device']}, {threads}; "
        f"MTP with {drafts}; {results.max_tokens} new tokens a prompt",
        machine.line,
        *([f"native kernels: {engine['cpu_isa']}"] if "cpu_isa" in engine else []),
    ]


def cells(point: Point) -> list[str]:
    """One row of the page's table."""
    sides = [
        text
        for side in (point.without, point.with_mtp)
        for text in (f"{side.output_throughput:.1f}", f"{side.mean_ttft_ms:.0f}", f"{side.mean_tpot_ms:.1f}")
    ]
    rates = " ".join(f"{rate:.0%}" for rate in point.spec.accept_rates)
    if point.auto is not None and not point.auto.drafting:
        rates = f"none: {point.auto.gain:.2f}x"
    return [
        f"{point.concurrency}",
        *sides,
        f"{point.ratio:.2f}x",
        f"{point.spec.accept_length:.2f}",
        rates,
    ]


def notes(results: Results) -> list[str]:
    """Where automatic depth made no drafts, and why."""
    return [
        f"automatic depth at concurrency {p.concurrency}: {p.auto.reason}"
        for p in results.points
        if p.auto is not None and not p.auto.drafting
    ]


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes results.json, a PNG and a self-contained page into `folder`; returns their paths."""
    title = f"{results.model}: latency against throughput"
    light, dark = (latency_against_throughput(title, results.points, p) for p in (LIGHT, DARK))
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
    pieces = [
        (text, depth, (depth - 1) % DEPTH_COLOURS + 1 if depth else 0)
        for text, depth in results.completion.pieces
    ]
    counts = Counter(depth for _, depth, _ in pieces)
    return render(
        TEMPLATE,
        results=results,
        heading=heading(results),
        rows=[cells(point) for point in results.points],
        notes=notes(results),
        best=max(point.ratio for point in results.points),
        light=base64.b64encode(light).decode(),
        dark=base64.b64encode(dark).decode(),
        pieces=pieces,
        legend=[
            (depth, (depth - 1) % DEPTH_COLOURS + 1 if depth else 0, n) for depth, n in sorted(counts.items())
        ],
    )
