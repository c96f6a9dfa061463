"""Writes a folder with the results: the table, the plots, a self-contained page, and results.json."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from nextn.bench.dev.sweep.plots import PLOTS, Curves
from nextn.bench.dev.sweep.results import Results
from nextn.bench.dev.sweep.table import failures, heading, layout, markdown, prompts_of, verdict
from nextn.bench.pages import render
from nextn.bench.plots import DARK, LIGHT

TEMPLATE = Path(__file__).parent / "report.html.j2"


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes results.json, table.md, report.html and, for each scenario, the plots in light and dark;
    returns their paths."""
    pictures = plots(results)
    files: dict[str, bytes] = {
        "results.json": json.dumps(results.as_dict()).encode() + b"\n",
        "table.md": f"{markdown(results)}\n{verdict(results)}\n".encode(),
        "report.html": page(results, pictures).encode(),
        **pictures,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def plots(results: Results) -> dict[str, bytes]:
    """The plots, as bytes of PNG files by file name."""
    made = {}
    sides = [side.name for side in results.sides]
    for scenario, rows in results.scenarios:
        curves = Curves(scenario.title, sides, rows)
        for kind, draw in PLOTS.items():
            made[f"{scenario.name}-{kind}.png"] = draw(curves, LIGHT)
            made[f"{scenario.name}-{kind}-dark.png"] = draw(curves, DARK)
    return made


def page(results: Results, pictures: dict[str, bytes]) -> str:
    """The HTML page. `pictures`: a result of `plots`."""
    coded = {name: base64.b64encode(content).decode() for name, content in pictures.items()}
    sections = []
    for scenario, rows in results.scenarios:
        header, body = layout(results, rows)
        sections.append({
            "title": scenario.title,
            "source": f"{scenario.source}; {prompts_of(rows)}.",
            "header": header,
            "body": body,
            "words": [name in ("side", "by depth, %") for name in header],
            "failures": failures(results, rows),
            "plots": [
                (kind, coded[f"{scenario.name}-{kind}.png"], coded[f"{scenario.name}-{kind}-dark.png"])
                for kind in PLOTS
            ],
        })  # fmt: skip
    return render(
        TEMPLATE,
        results=results,
        heading=[re.sub(r"`(.*)`", r"\1", line) for line in heading(results)],
        verdict=verdict(results),
        sections=sections,
    )
