"""The plots: latency against throughput; ratio, TTFT and TPOT over the load. A plot is the bytes of a PNG
file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from nextn.bench.dev.sweep.results import Row
from nextn.bench.plots import DARK, LIGHT, Palette, blank, dress, png

# Colours of the sides, repeated if there are more sides. The first is the base's.
COLORS = {
    LIGHT: ("#8a5a00", "#0a5fc4", "#1a7f37", "#8250df", "#bf3989", "#57606a"),
    DARK: ("#e0a33e", "#6cb6ff", "#56d364", "#d2a8ff", "#ff80ce", "#9da7b1"),
}
MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Curves:
    """One scenario's rows, and the names of its sides."""

    title: str
    sides: Sequence[str]
    rows: Sequence[Row]

    @property
    def axis(self) -> str:
        """The label of the x axis."""
        of = {"concurrency": "concurrency, requests at once", "request rate": "request rate, requests/s"}
        return of[self.rows[0].level.axis]


def latency_throughput(curves: Curves, palette: Palette = LIGHT) -> bytes:
    """Mean latency of a request over output tokens/s, one curve for each side. Lower and further to the right
    is better."""
    figure = blank(palette)
    axes = figure.add_subplot(facecolor=palette.background)
    for i, name in enumerate(curves.sides):
        medians = [row.cells[i].median for row in curves.rows]
        x, y = [m.output_throughput for m in medians], [m.mean_e2e_ms / 1000 for m in medians]
        draw(axes, x, y, name, i, palette)
        # Only the first and last curves have labels; those of the other curves would overlap.
        if i in (0, len(curves.sides) - 1):
            offset = (0, 9) if i == 0 else (0, -17)
            for row, right, up in zip(curves.rows, x, y, strict=True):
                axes.annotate(
                    f"{row.level.value:g}", (right, up), offset, textcoords="offset points", ha="center",
                    color=color(i, palette), fontsize=10, fontweight="bold",
                )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_xlabel("output throughput, tokens/s", color=palette.text)
    axes.set_ylabel("mean latency of a request, s", color=palette.text)
    finish(axes, f"{curves.title}: latency against throughput", palette, f"numbers: {curves.axis}")
    return png(figure)


def ratio(curves: Curves, palette: Palette = LIGHT) -> bytes:
    """Each side's ratio to the first side, over the load."""
    figure = blank(palette)
    axes = figure.add_subplot(facecolor=palette.background)
    over_load(axes, curves, palette, lambda row, side: row.ratio(side))
    what = "output tok/s" if curves.rows[0].level.concurrency is not None else "1 / mean latency"
    axes.set_ylabel(f"{what}, {curves.sides[0]} = 1", color=palette.text)
    finish(axes, f"{curves.title}: ratio to {curves.sides[0]}", palette)
    return png(figure)


def ttft_tpot(curves: Curves, palette: Palette = LIGHT) -> bytes:
    """Mean time to first token and per output token over the load, side by side."""
    figure = blank(palette)
    figure.set_size_inches(11, 4.6)
    left, right = figure.subplots(1, 2)
    for axes, name, of in (
        (left, "mean time to first token, ms", lambda row, side: row.cells[side].median.mean_ttft_ms),
        (right, "mean time per output token, ms", lambda row, side: row.cells[side].median.mean_tpot_ms),
    ):
        axes.set_facecolor(palette.background)
        over_load(axes, curves, palette, of)
        axes.set_ylabel(name, color=palette.text)
        finish(axes, f"{curves.title}: {'TTFT' if axes is left else 'TPOT'}", palette)
    return png(figure)


PLOTS: dict[str, Callable[[Curves, Palette], bytes]] = {
    "latency-throughput": latency_throughput,
    "ratio": ratio,
    "ttft-tpot": ttft_tpot,
}


def over_load(axes: Axes, curves: Curves, palette: Palette, of: Callable[[Row, int], float]) -> None:
    loads = [row.level.value for row in curves.rows]
    for i, name in enumerate(curves.sides):
        draw(axes, loads, [of(row, i) for row in curves.rows], name, i, palette)
    axes.set_xscale("log", base=2)
    axes.set_xticks(loads, [f"{load:g}" for load in loads])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(curves.axis, color=palette.text)


def draw(axes: Axes, x: list[float], y: list[float], name: str, side: int, palette: Palette) -> None:
    axes.plot(
        x, y, marker=MARKERS[side % len(MARKERS)], markersize=7, linewidth=2.2,
        linestyle="--" if side == 0 else "-", color=color(side, palette), label=name,
    )  # fmt: skip


def color(side: int, palette: Palette) -> str:
    return COLORS[palette][side % len(COLORS[palette])]


def finish(axes: Axes, title: str, palette: Palette, legend: str | None = None) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=palette.text, pad=12)
    axes.margins(0.1, 0.16)
    axes.set_ylim(bottom=0)
    dress(axes, palette)
    made = axes.legend(
        frameon=False, labelcolor=palette.text, loc="best", title=legend,
        title_fontproperties={"size": 9}, alignment="left",
    )  # fmt: skip
    made.get_title().set_color(palette.text)
