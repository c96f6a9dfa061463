"""Draws which part of a layer each rank computes, and what the ranks gather: docs/pictures/ranks.svg.

python benchmarks/ranks_picture.py docs/pictures/ranks.svg
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

RANKS = 2
WHOLE, PART, GATHERED = "#dde3ea", ("#2f5d8a", "#a34f00"), "#2e7d32"
WIDTH, LEFT, WIDE, GAP, HIGH = 910, 16, 300, 16, 34
# (what every rank computes completely) or (what each rank computes of, the unit, what is gathered after it)
STEPS: tuple[tuple[str, str, str], ...] = (
    ("embedding, norm", "", ""),
    ("q_a, kv_a", "columns", "latents, f32"),
    ("q_b, attention", "heads", "values, bf16"),
    ("out", "columns", "added to the residual stream, f32"),
    ("norm, router", "", ""),
    ("gate, up", "inner columns", "inner columns, bf16"),
    ("down", "columns", "added to the residual stream, f32"),
    ("norm, after the last layer", "", ""),
    ("head", "tokens", "choices, 12 bytes, or logits, f32"),
)


def box(x: float, y: float, width: float, color: str, text: str, light: bool = False) -> str:
    ink = "#ffffff" if light else "#1f2933"
    place = f'x="{x + width / 2}" y="{y + HIGH / 2 + 5}"'
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{HIGH}" rx="4" fill="{color}"/>'
        f'<text {place} fill="{ink}" text-anchor="middle">{escape(text)}</text>'
    )


def lines() -> Iterator[str]:
    """The elements from top to bottom, and at last the height."""
    y = 16.0
    for rank in range(RANKS):
        x = LEFT + rank * (WIDE + GAP) + WIDE / 2
        yield f'<text x="{x}" y="{y + 12}" text-anchor="middle" font-weight="bold">rank {rank}</text>'
    x = LEFT + RANKS * (WIDE + GAP)
    yield f'<text x="{x}" y="{y + 12}" font-weight="bold">gathered after it</text>'
    y += 26
    for name, unit, after in STEPS:
        for rank in range(RANKS):
            at = LEFT + rank * (WIDE + GAP)
            if unit:
                half = "first" if rank == 0 else "second"
                yield box(at, y, WIDE, PART[rank], f"{name}: {half} half of the {unit}", light=True)
            else:
                yield box(at, y, WIDE, WHOLE, f"{name}: all of it")
        if after:
            end = LEFT + RANKS * (WIDE + GAP) - GAP
            yield f'<path d="M{LEFT} {y + HIGH + 5} H{end}" stroke="{GATHERED}" stroke-width="4"/>'
            yield f'<text x="{end + GAP}" y="{y + HIGH + 9}" fill="{GATHERED}">{escape(after)}</text>'
        y += HIGH + (14 if after else 8)
    yield f"{y + 8:g}"


def picture() -> str:
    *elements, height = lines()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="14">'
    )
    back = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, back, *elements, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
