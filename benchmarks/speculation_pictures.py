"""Makes the pictures and the worked example of docs/speculative.md.

    python benchmarks/speculation_pictures.py --verify-modes MODES.json --compare COMPARE.json

MODES.json is a result of benchmarks/verify_modes.py, COMPARE.json a result of `nextn bench compare`. The
example and the tree come from greedy decoding with the embedded model: the first steps of a chain, as a
Markdown table on stdout, and the first tree whose accepted branch a chain would not have had.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from nextn.bench.dev.sweep.plots import COLORS, MARKERS
from nextn.bench.plots import LIGHT, blank, dress, png
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.draft import Draft
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.tokenizer import Tokenizer

PROMPT = "import os\n\n\ndef read(path):\n"
DRAFTS = 3
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 10}
STEPS = 6  # steps in the example
ACCEPTED, REST = "#1a7f37", "#8c959f"


@dataclass(frozen=True)
class Step:
    root: str
    draft: Draft
    words: list[str]  # tokens of the draft's nodes, as text
    accepted: list[int]  # accepted nodes
    final: str  # the bonus: the target's token after the last accepted node


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--verify-modes", type=Path, required=True)
    parser.add_argument(
        "--compare",
        type=Path,
        help="result for the picture of the ratio over the load; without it there is none",
    )
    parser.add_argument("--output", type=Path, default=Path("docs/pictures"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    print(table([step for step, _ in zip(steps(speculative_num_steps=DRAFTS), range(STEPS), strict=False)]))
    pictures = {"draft-tree": tree_picture(tree_step())}
    pictures["accept-length"] = length_picture(json.loads(args.verify_modes.read_text()))
    if args.compare is not None:
        pictures["ratio-over-load"] = ratio_picture(json.loads(args.compare.read_text()))
    for name, picture in pictures.items():
        (args.output / f"{name}.png").write_bytes(picture)
        print(args.output / f"{name}.png")
    return 0


def steps(**options: Any) -> Iterator[Step]:
    """Runs an engine and yields the steps that verified drafts."""
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    engine = Engine(EngineConfig(**options))
    prompt = tokenizer.encode(PROMPT)
    engine.add(Request("a", prompt, SamplingParams(max_tokens=120, temperature=0, ignore_eos=True)))
    while engine.has_work():
        plan = engine._scheduler.plan()
        (span,) = plan.spans
        root = engine._scheduler.by_rid["a"].tokens[span.start]
        result = engine._executor.launch(plan).result()
        draft, tokens = span.draft, result.spans[0].tokens
        engine._scheduler.commit(plan, result)
        if len(draft):
            accepted: list[int] = []
            for token in tokens[:-1]:
                below = accepted[-1] if accepted else -1
                accepted += [
                    n for n in range(len(draft)) if draft.parent(n) == below and draft.tokens[n] == token
                ]
            words = [tokenizer.token_names[t] for t in draft.tokens]
            yield Step(tokenizer.token_names[root], draft, words, accepted, tokenizer.token_names[tokens[-1]])


def tree_step() -> Step:
    for step in steps(**TREE):
        draft = step.draft
        likeliest = {draft.parent(n): n for n in reversed(range(len(draft)))}  # node -> its likeliest child
        if len(step.accepted) > 1 and any(likeliest[draft.parent(n)] != n for n in step.accepted):
            return step
    raise AssertionError("in this text the likeliest branch is always the one that holds")


def escaped(word: str) -> str:
    return json.dumps(word)[1:-1].replace('\\"', '"')


def code(word: str) -> str:
    return f"`{escaped(word)}`"


def table(found: list[Step]) -> str:
    """A Markdown table of steps with chains."""
    lines = ["| root | drafts | the target says | committed |", "|---|---|---|---|"]
    for step in found:
        held = len(step.accepted)
        said = [f"{code(w)} ✓" for w in step.words[:held]]
        said.append(
            f"not {code(step.words[held])} but {code(step.final)}"
            if held < len(step.words)
            else code(step.final)
        )
        drafts = " ".join(map(code, step.words))
        lines.append(f"| {code(step.root)} | {drafts} | {', '.join(said)} | {held} + 1 |")
    return "\n".join(lines)


def tree_picture(step: Step) -> bytes:
    """Draws a tree: the root on the left, a column for each depth. Each node has the drafter's probability of
    its path."""
    draft = step.draft
    assert draft.confidence is not None
    depths = [len(draft.path(n)) for n in range(len(draft))]
    children = {n: [c for c in range(len(draft)) if draft.parent(c) == n] for n in range(-1, len(draft))}
    heights: dict[int, float] = {}
    leaves = 0

    def place(node: int) -> float:
        nonlocal leaves
        below = [place(child) for child in children[node]]
        if not below:
            leaves += 1
        heights[node] = sum(below) / len(below) if below else float(-leaves)
        return heights[node]

    place(-1)
    figure = blank(LIGHT)
    figure.set_size_inches(9, 0.62 * leaves + 1.2)
    axes = figure.add_subplot(facecolor=LIGHT.background)
    held = {-1, *step.accepted}
    for node in range(len(draft)):
        parent = draft.parent(node)
        good = node in held
        axes.plot(
            [depths[node] - 1, depths[node]], [heights[parent], heights[node]],
            color=ACCEPTED if good else REST, linewidth=2.6 if good else 1.2, zorder=1,
        )  # fmt: skip
    label(axes, 0, heights[-1], shown(step.root), ACCEPTED)
    for node in range(len(draft)):
        chance = f"{math.exp(draft.confidence[node]):.2g}"
        text = f"{shown(step.words[node])}   {chance}"
        label(axes, depths[node], heights[node], text, ACCEPTED if node in held else REST)
    last = step.accepted[-1]
    end = depths[last] + 1
    axes.plot(
        [depths[last], end], [heights[last]] * 2, color=ACCEPTED, linewidth=2.6, linestyle=":", zorder=1
    )
    label(axes, end, heights[last], f"{shown(step.final)}   bonus", ACCEPTED)
    axes.set_xlim(-0.5, max(depths) + 1.6)
    axes.set_ylim(-leaves - 0.7, -0.3)
    axes.set_axis_off()
    axes.set_title(
        f"{len(draft)} drafts, verified in one pass; numbers: the drafter's probability of the path",
        loc="left", fontsize=11, color=LIGHT.text,
    )  # fmt: skip
    return png(figure)


def shown(word: str) -> str:
    return escaped(word).replace(" ", "␣")


def label(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    axes.annotate(
        text, (x, y), ha="center", va="center", fontsize=10, family="monospace", color=LIGHT.text,
        bbox={"boxstyle": "round,pad=0.35", "facecolor": LIGHT.background, "edgecolor": color,
              "linewidth": 1.6},
    )  # fmt: skip


def length_picture(result: dict[str, Any]) -> bytes:
    """Draws accept length over draft depth: a curve for each verify mode, a panel for each temperature."""
    rows = result["rows"]
    temperatures = sorted({row["temperature"] for row in rows})
    modes = list(dict.fromkeys(row["verify"] for row in rows))
    figure = blank(LIGHT)
    figure.set_size_inches(5 * len(temperatures) + 1, 4.4)
    panels = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    for axes, temperature in zip(panels, temperatures, strict=True):
        axes.set_facecolor(LIGHT.background)
        for i, mode in enumerate(modes):
            mine = [r for r in rows if (r["temperature"], r["verify"]) == (temperature, mode)]
            curve(axes, [r["drafts"] for r in mine], [r["accept_length"] for r in mine], mode, i)
        axes.set_title(f"temperature {temperature:g}", loc="left", fontsize=11, color=LIGHT.text)
        axes.set_xlabel("drafts", color=LIGHT.text)
        axes.set_xticks(sorted({r["drafts"] for r in rows}))
        dress(axes, LIGHT)
    panels[0].set_ylabel("tokens a verify step commits", color=LIGHT.text)
    panels[0].legend(frameon=False, labelcolor=LIGHT.text, loc="upper left", fontsize=9)
    return png(figure)


def ratio_picture(result: dict[str, Any]) -> bytes:
    """Draws the ratio of each side's output tokens/s to the first side's, over the requests at once."""
    points = result["scenarios"][0]["points"]
    figure = blank(LIGHT)
    axes = figure.add_subplot(facecolor=LIGHT.background)
    for i, side in enumerate(points[0]["sides"]):
        curve(axes, [p["concurrency"] for p in points], [p["sides"][side]["ratio"] for p in points], side, i)
    axes.set_xscale("log", base=2)
    axes.set_xticks([p["concurrency"] for p in points], [f"{p['concurrency']:g}" for p in points])
    axes.set_xlabel("requests at once", color=LIGHT.text)
    axes.set_ylabel(f"output tokens/s, {next(iter(points[0]['sides']))} = 1", color=LIGHT.text)
    axes.set_title(result["machine"]["cpu"], loc="left", fontsize=11, color=LIGHT.text)
    dress(axes, LIGHT)
    axes.legend(frameon=False, labelcolor=LIGHT.text, fontsize=9)
    return png(figure)


def curve(axes: Axes, x: list[float], y: list[float], name: str, number: int) -> None:
    color = COLORS[LIGHT][number % len(COLORS[LIGHT])]
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(x, y, marker=marker, markersize=6, linewidth=2, color=color, label=name)


if __name__ == "__main__":
    sys.exit(main())
