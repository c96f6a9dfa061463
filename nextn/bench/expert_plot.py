"""Heat maps of the loads of shards, as the bytes of PNG files."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from numpy.typing import NDArray

from nextn.bench.plots import LIGHT, Palette, blank, dress, png

MOST_NUMBERS = 200  # maximum number of cells of a map that has a number in each cell
DARKEST = (2.0, 4.0)  # the darkest colour stands for the highest load over mean, clipped to this range


def shard_load_maps(title: str, maps: dict[str, NDArray[Any]], palette: Palette = LIGHT) -> bytes:
    """Draws maps [layers, shards] side by side, on one scale. Each value is a load over its layer's mean."""
    figure = blank(palette)
    layers = max(len(values) for values in maps.values())
    figure.set_size_inches(9, min(max(2.8, 1.6 + 0.22 * layers), 12))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=palette.text)
    all_axes = np.atleast_1d(figure.subplots(1, len(maps), sharey=True))
    highest = max(float(values.max()) for values in maps.values())
    norm = TwoSlopeNorm(1, 0, float(np.clip(highest, *DARKEST)))
    for axes, (name, values) in zip(all_axes, maps.items(), strict=True):
        image = axes.imshow(values, aspect="auto", cmap="RdBu_r", norm=norm)
        if values.size <= MOST_NUMBERS:
            for (layer, shard), value in np.ndenumerate(values):
                far = abs(norm(value) - 0.5) > 0.3
                axes.text(
                    shard, layer, f"{value:.2f}", ha="center", va="center", fontsize=8,
                    color="white" if far else "black",
                )  # fmt: skip
        axes.set_title(name, fontsize=10, color=palette.text)
        axes.set_xlabel("shard", color=palette.text)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.get_major_locator().set_params(integer=True)
        dress(axes, palette)
        axes.grid(False)
    all_axes[0].set_ylabel("layer", color=palette.text)
    more = "max" if highest > DARKEST[1] else "neither"
    bar = figure.colorbar(image, ax=list(all_axes), extend=more, fraction=0.03, pad=0.01, aspect=30)
    bar.set_label("load relative to the layer's mean", color=palette.text)
    bar.ax.tick_params(colors=palette.text, length=0)
    bar.outline.set_visible(False)
    return png(figure)
