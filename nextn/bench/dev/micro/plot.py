"""The roofline plot: the limits at each number of operations per byte, and the measured speeds."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes

from nextn.bench.dev.micro.arithmetic import of_torch
from nextn.bench.dev.micro.results import Micro, OpMeasurement
from nextn.bench.plots import LIGHT, Palette, blank, dress, png

MARKERS = {
    "linear": "o", "experts": "s", "swiglu_mlp": "^", "mla_attention": "D", "heads_matmul": "v",
    "absorb": "v", "feed_forward": "s",
}  # fmt: skip
COLORS = ("#0a5fc4", "#8a5a00", "#1a7f37", "#8250df", "#bf3989", "#57606a", "#cf222e", "#0f8b8d")


def roofline_plot(micro: Micro, palette: Palette = LIGHT) -> bytes:
    """Draws the plot; returns the bytes of a PNG file. Lines: the ceilings, solid for the arithmetic of the
    ops; dotted: the limit if reading and arithmetic take turns. Points: the products of the engine's backend
    at each number of rows, joined; the headline linear; whole steps as stars."""
    figure = blank(palette)
    figure.set_size_inches(9, 5.6)
    axes = figure.add_subplot(facecolor=palette.background)
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = curves(micro)
    for color, (label, found) in zip(COLORS, points.items(), strict=False):
        x, y = [op.flops / op.bytes for op in found], [op.gflop_s for op in found]
        axes.plot(x, y, marker=MARKERS[found[0].op], markersize=6, linewidth=1.4, color=color, label=label)
        for op, right, up in zip(found, x, y, strict=True):
            axes.annotate(
                f"{op.rows}", (right, up), (0, 6), textcoords="offset points", ha="center", fontsize=7,
                color=color,
            )  # fmt: skip
    for step in map(micro.step, micro.steps):
        at = (step["flops"] / step["bytes"], step["gflop_s"])
        axes.plot(*at, marker="*", markersize=15, color=palette.text, linestyle="none")
        axes.annotate(
            step["name"], at, (9, -4), textcoords="offset points", fontsize=9, fontweight="bold",
            color=palette.text,
        )  # fmt: skip
    ceilings(axes, micro, palette)
    axes.set_title(
        f"{micro.model}: {micro.backend} in {micro.dtype}, threads {micro.threads}, {micro.machine.cpu}",
        loc="left", fontsize=11, color=palette.text, pad=12,
    )  # fmt: skip
    axes.set_xlabel("operations per byte", color=palette.text)
    axes.set_ylabel("GFLOP/s", color=palette.text)
    dress(axes, palette)
    axes.legend(
        frameon=False, labelcolor=palette.text, loc="lower right", fontsize=8,
        title="numbers: rows; stars: steps; dotted: both in turn", title_fontproperties={"size": 8},
    ).get_title().set_color(palette.text)  # fmt: skip
    return png(figure)


def curves(micro: Micro) -> dict[str, list[OpMeasurement]]:
    """One curve, ordered by rows, for each op that has products, at its first use in the model."""
    found: dict[str, list[OpMeasurement]] = {}
    uses: dict[str, str] = {}
    for op in (*micro.headline, *micro.ops):
        if op.backend != micro.backend or op.op not in MARKERS:
            continue
        if op in micro.headline:
            label = f"linear {op.shape}, {op.dtype}"
        elif op.op == "experts":
            label = "experts (routed)"
        elif op.op == "feed_forward":
            label = "router and routed experts"
        elif uses.setdefault(op.op, op.what) == op.what:
            label = f"{op.op} {op.shape} ({op.what})"
        else:
            continue
        found.setdefault(label, []).append(op)
    return found


def ceilings(axes: Axes, micro: Micro, palette: Palette) -> None:
    """Draws the ceilings. Solid: of the arithmetic that the ops use most. Dashed: of other arithmetic.
    Dotted: the limit if reading and arithmetic take turns."""
    read = micro.ceilings.read_bytes_per_s / 1e9
    left, right = axes.get_xlim()
    right *= 4  # room for the names of the lines
    used = arithmetic_of(micro)
    for name, peak in peaks(micro).items():
        ridge = peak / read
        axes.plot(
            [left, ridge, right], [left * read, peak, peak], "-" if name == used else "--",
            color=palette.text, linewidth=1.4, zorder=1,
        )  # fmt: skip
        axes.annotate(
            f"{peak:.0f} GFLOP/s, {name}", (right, peak), (0, 4), textcoords="offset points",
            ha="right", fontsize=8, color=palette.text,
        )  # fmt: skip
    x = np.geomspace(left, right, 100)
    in_turn = 1 / (1 / (x * read) + 1 / peaks(micro)[used])
    axes.plot(x, in_turn, ":", color=palette.text, linewidth=1.2, zorder=1)
    axes.annotate(
        f"{read:.1f} GB/s", (left, left * read), (10, 16), textcoords="offset points", fontsize=8,
        color=palette.text,
    )  # fmt: skip
    axes.set_xlim(left, right)


def peaks(micro: Micro) -> dict[str, float]:
    """GFLOP/s of each arithmetic of the backend, by name."""
    if micro.backend == "cpu":
        return {name: case.flops_per_s / 1e9 for name, case in micro.ceilings.native.items()}
    dtypes = (torch.float32, torch.bfloat16)
    return {of_torch(dtype): micro.ceilings.flops_per_s(dtype) / 1e9 for dtype in dtypes}


def arithmetic_of(micro: Micro) -> str:
    """The main arithmetic of the backend's first op."""
    parts = next(op.arithmetic for op in (*micro.ops, *micro.headline) if op.backend == micro.backend)
    return max(parts, key=lambda name: parts[name])
