"""A bar chart of the time of requests by stage: one bar for each side at each concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nextn.bench.plots import LIGHT, Palette, blank, dress, png
from nextn.bench.stages import NAMES, Stages


class Bar(Protocol):
    @property
    def concurrency(self) -> int: ...
    @property
    def side(self) -> str: ...
    @property
    def stages(self) -> Stages: ...


# Prefill and decode have the colours of "without MTP" and "with MTP"; waiting is grey.
COLOURS = {
    "gateway": "#b9c0c8", "queue": "#8b949e", "prefill": LIGHT.without, "transfer": "#b3261e",
    "first": "#5b9be0", "decode": LIGHT.with_mtp,
}  # fmt: skip


def stages_by_side(title: str, bars: Sequence[Bar], palette: Palette = LIGHT) -> bytes:
    figure = blank(palette)
    axes = figure.add_subplot(facecolor=palette.background)
    lefts = [0.0] * len(bars)
    places = range(len(bars))
    for name, words in NAMES.items():
        widths = [getattr(bar.stages, name) for bar in bars]
        axes.barh(places, widths, left=lefts, height=0.62, color=COLOURS[name], label=words)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(places, [f"{bar.side}, {bar.concurrency} at once" for bar in bars])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=12, color=palette.text, pad=12)
    axes.set_xlabel("mean time per request, ms", color=palette.text)
    dress(axes, palette)
    axes.grid(visible=False, axis="y")
    figure.legend(
        loc="outside lower center", ncols=len(NAMES), frameon=False, labelcolor=palette.text, fontsize=9
    )
    return png(figure)
