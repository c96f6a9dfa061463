"""Draws the losses of a run: `python recipes/tiny/plot.py` reads `build/tiny/*.jsonl`, writes loss.png."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LABELS = ("next token (target)", "MTP depth 1", "MTP depth 2", "MTP depth 3")
COLOURS = ("#1f4e79", "#2a9d8f", "#e9a03b", "#c8553d")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def smooth(values: list[float], share: float = 0.95) -> list[float]:
    out, mean = [], values[0]
    for v in values:
        mean = share * mean + (1 - share) * v
        out.append(mean)
    return out


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--work", type=Path, default=Path("build/tiny"))
    ap.add_argument("--out", type=Path, default=Path(__file__).with_name("loss.png"))
    args = ap.parse_args()
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), gridspec_kw={"width_ratios": (3, 2)})

    # A resumed run logs the steps after its last save again. The later rows count.
    rows = list({r["step"]: r for r in read(args.work / "log.jsonl")}.values())
    for d, (label, colour) in enumerate(zip(LABELS, COLOURS, strict=True)):
        train = [(r["tokens"], r["train"][d]) for r in rows if len(r["train"]) > d]
        held = [(r["tokens"], r["held_out"][d]) for r in rows if "held_out" in r]
        x, y = zip(*train, strict=True)
        left.plot([t / 1e6 for t in x], smooth(list(y)), color=colour, alpha=0.45, lw=1)
        x, y = zip(*held, strict=True)
        left.plot([t / 1e6 for t in x], y, color=colour, lw=1.8, marker=".", ms=4, label=label)
    left.set(
        xlabel="training tokens, million", ylabel="cross entropy, nats", title="Stage 1 (dots: held out)"
    )
    left.set_ylim(top=6.5)
    left.legend(frameon=False)

    tune = [r for r in read(args.work / "tune.jsonl") if r["part"] == "distillation"]
    for d in range(3):
        values = smooth([r["loss"][d] for r in tune], 0.9)
        right.plot(values, color=COLOURS[d + 1], lw=1.5, label=LABELS[d + 1])
    second = [i for i, r in enumerate(tune) if r["step"] == 1][-1]
    right.axvline(second, color="grey", ls=":", lw=1)
    corner = {"ha": "right", "va": "top", "fontsize": 8, "rotation": 90}
    right.text(second, right.get_ylim()[1], "second round: T = 0.7 only ", **corner)
    right.set(xlabel="step", ylabel="cross entropy to the target's softmax", title="Distillation")
    right.legend(frameon=False)
    for ax in (left, right):
        ax.grid(alpha=0.2)
        ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
