"""The demo's plot, and helpers to draw plots without a display. A plot is the bytes of a PNG file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nextn.bench.results import Point


@dataclass(frozen=True)
class Palette:
    background: str
    text: str
    grid: str
    without: str
    with_mtp: str


# The variables card, text, line, without and with of nextn/server/http/page/colours.css.
LIGHT = Palette("#ffffff", "#1b1f24", "#d5dae0", "#8a5a00", "#0a5fc4")
DARK = Palette("#1d2126", "#e8eaed", "#363c44", "#e0a33e", "#6cb6ff")


def latency_against_throughput(title: str, points: Sequence[Point], palette: Palette = LIGHT) -> bytes:
    """Draws two curves, without and with MTP. Each point is labelled with its concurrency. Lower and further
    to the right is better."""
    figure = blank(palette)
    axes = figure.add_subplot(facecolor=palette.background)
    curves = (
        ("without MTP", palette.without, "o", (0, 9), [p.without for p in points]),
        ("with MTP", palette.with_mtp, "s", (0, -17), [p.with_mtp for p in points]),
    )
    for name, color, marker, offset, sides in curves:
        x = [s.output_throughput for s in sides]
        y = [s.mean_tpot_ms for s in sides]
        axes.plot(x, y, marker=marker, markersize=7, linewidth=2.2, color=color, label=name)
        for point, right, up in zip(points, x, y, strict=True):
            axes.annotate(
                f"{point.concurrency}", (right, up), offset, textcoords="offset points", ha="center",
                color=color, fontsize=10, fontweight="bold",
            )  # fmt: skip
    axes.set_title(title, loc="left", fontsize=12, color=palette.text, pad=12)
    axes.set_xlabel("output throughput, tokens/s", color=palette.text)
    axes.set_ylabel("mean time per output token, ms", color=palette.text)
    axes.margins(0.1, 0.16)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    dress(axes, palette)
    axes.legend(
        frameon=False, labelcolor=palette.text, loc="upper left", title="numbers: concurrent requests",
        title_fontproperties={"size": 9}, alignment="left",
    ).get_title().set_color(palette.text)  # fmt: skip
    return png(figure)


def blank(palette: Palette) -> Figure:
    figure = Figure(figsize=(8, 4.8), dpi=160, facecolor=palette.background, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, palette: Palette) -> None:
    """Styles grid, ticks and edges; the grid is drawn behind the data."""
    axes.grid(color=palette.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=palette.text, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.grid)


def png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
