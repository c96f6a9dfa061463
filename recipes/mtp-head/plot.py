"""Draws a training run: losses and accept lengths over time, and the final module's accept lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = ("#1f4e79", "#2a9d8f", "#e9a03b")


def plot(log: Path, report: Mapping[str, Any], out: Path) -> None:
    # A resumed run logs the steps after its last save again. The later rows count.
    rows = list({row["step"]: row for row in map(json.loads, log.read_text().splitlines())}.values())
    minutes = [row["seconds"] / 60 for row in rows]
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    for d, colour in enumerate(COLOURS[: len(rows[0]["accept_lengths"])]):
        # At first only depth 1 has a loss.
        losses = [row["loss"][d] if d < len(row["loss"]) else float("nan") for row in rows]
        left.plot(minutes, losses, color=colour, lw=1.2, label=f"depth {d + 1}")
        lengths = [row["accept_lengths"][d] for row in rows]
        right.plot(minutes, lengths, color=colour, lw=1.5, label=f"{d + 1} drafts")
    for (name, found), marker in zip(
        ((k, v) for k, v in report.items() if k.startswith("T=")), "ovs^", strict=False
    ):
        right.plot(minutes[-1], found["accept_length"], marker, color="black", ms=5, label=f"engine: {name}")
    left.set(xlabel="minutes", ylabel="cross entropy to the base's choice, nats", title="Training loss")
    right.set(xlabel="minutes", ylabel="tokens a step", title="Accept length, held-out texts, greedy")
    for ax in (left, right):
        ax.legend(frameon=False, fontsize=8)
        ax.grid(alpha=0.2)
        ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(out, dpi=110)
