"""A plot of one load: the distributions of its latencies, and the requests in flight over time."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nextn.bench.client import Load, Reply
from nextn.bench.plots import LIGHT, Palette

COLORS = ("#0a5fc4", "#8a5a00", "#1a7f37", "#8250df")


def load_plot(title: str, load: Load, palette: Palette = LIGHT) -> bytes:
    """Draws the plot; returns the bytes of a PNG file."""
    figure = Figure(figsize=(11, 4.6), dpi=140, facecolor=palette.background, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=palette.text)
    left, right = figure.subplots(1, 2)
    distributions(left, load.replies)
    in_flight(right, load.replies)
    for axes in (left, right):
        axes.grid(color=palette.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=palette.text, which="both", length=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def distributions(axes: Axes, replies: list[Reply]) -> None:
    latencies = {
        "E2E": [r.latency for r in replies],
        "TTFT": [r.ttft for r in replies],
        "TPOT": [r.tpot for r in replies if r.tpot is not None],
        "ITL": [gap for r in replies for gap in r.gaps],
    }
    for color, (name, seconds) in zip(COLORS, latencies.items(), strict=True):
        ms = sorted(s * 1000.0 for s in seconds if s > 0)
        shares = [(i + 1) / len(ms) for i in range(len(ms))]
        axes.step(ms, shares, where="post", color=color, linewidth=2, label=name)
    if replies:
        axes.set_xscale("log")
        axes.legend(frameon=False, loc="upper left")
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0, 1.02)


def in_flight(axes: Axes, replies: list[Reply]) -> None:
    changes = sorted([(r.sent, 1) for r in replies] + [(r.arrivals[-1], -1) for r in replies])
    times, counts, now = [0.0], [0], 0
    for when, change in changes:
        now += change
        times.append(when - changes[0][0])
        counts.append(now)
    axes.step(times, counts, where="post", color=COLORS[0], linewidth=1.6)
    axes.set_xlabel("seconds since the first request")
    axes.set_ylabel("requests in flight that succeeded")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
