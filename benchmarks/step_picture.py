"""Draws how the time of a step is spent: two steps in a row of a server with 16 requests.

    python benchmarks/step_picture.py --picture PICTURE.png -- --speculative-num-steps 2    # 20 seconds
    python benchmarks/step_picture.py --picture PICTURE.png --trace FILE.trace.json.gz      # from a trace

Options after -- are options of `nextn serve`, which is started, put under load and profiled (/start_profile).
Only decode steps with the maximum number of requests count. The result, printed and written with --output, is
medians over these steps: milliseconds for each kind of interval, and the share of time in which kernels ran.
The picture shows the two steps in a row that are nearest to these medians.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from last_line import tell
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from nextn.bench.local_server import LocalServer
from nextn.bench.plots import LIGHT, blank, dress, png
from nextn.trace_file import Event, read

REQUESTS, PROMPTS, TOKENS = 16, 48, 160
STEPS = 60  # recorded steps
LANES = {"server": "server", "engine loop": "engine's loop", "engine": "engine's loop", "runner": "kernels"}
WAITING = ("launch", "result", "wait")  # intervals in which the loop waits for others
COLORS = {
    "decode": "#9da7b1", "hand out": "#57606a", "detokenize": "#bf3989", "send": "#8250df",
    "parse": "#d4a72c", "tokenize": "#bc4c00", "receive": "#57606a", "add requests": "#9da7b1",
    "plan": "#0a5fc4", "launch": "#dde3ea", "result": "#dde3ea", "wait": "#dde3ea", "commit": "#1a7f37",
    "prepare": "#9da7b1", "native step": "#8a5a00", "forward": "#8a5a00", "choose and verify": "#d4a72c",
    "draft": "#6cb6ff",
}  # fmt: skip
OTHER = "#afb8c1"


@dataclass(frozen=True)
class Step:
    """A step of the engine's process. begin: the end of the step before. Times are microseconds."""

    begin: float
    end: float
    counts: dict[str, int]

    @property
    def decodes(self) -> bool:
        """Whether the step has no prompt chunk."""
        return self.counts["rows"] == self.counts["decoding"] + self.counts["drafts"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, help="trace to draw (default: profile a server)")
    parser.add_argument("--picture", type=Path, required=True, help="PNG file; results get its name, too")
    parser.add_argument("--title", default="two steps", help="title of the picture")
    parser.add_argument("--keep", type=Path, help="folder that keeps the trace")
    parser.add_argument("--output", type=Path, help="folder that keeps the result")
    parser.add_argument("server_options", nargs="*", metavar="-- OPTION", help="options of nextn serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = args.trace or profiled(Path(folder), args.keep or Path(folder), args.server_options)
        events = [event for event in read(trace) if event["ph"] == "X"]
    steps = steps_of(events)
    most = max(step.counts["requests"] for step in steps)
    pairs = [
        (first, second)
        for first, second in pairwise(steps)
        if all(step.decodes and step.counts["requests"] == most for step in (first, second))
    ]
    if not pairs:
        parser.error("the trace has no two decode steps in a row with as many requests as there are at most")
    alike = [step for step in steps if step.decodes and step.counts["requests"] == most]
    usual = medians([parts(events, step) for step in alike])
    nearest = min(pairs, key=lambda pair: sum(distance(parts(events, step), usual) for step in pair))
    args.picture.write_bytes(picture(events, *nearest, title=args.title))
    print(args.picture)
    result = {
        "options": args.server_options,
        "requests": most,
        "steps": len(alike),
        "step_ms": round(median(step.end - step.begin for step in alike) / 1000, 3),
        "kernels_busy": round(median(busy(events, s.begin, s.end) / (s.end - s.begin) for s in alike), 3),
        "ms": {kind: round(took / 1000, 3) for kind, took in sorted(usual.items())},
    }
    tell(args.picture.stem, result, args.output)
    return 0


def profiled(folder: Path, keep: Path, options: Sequence[str]) -> Path:
    """Starts a server, profiles it under load, and returns the path of the trace."""
    with LocalServer("profiled", list(options), folder / "server.log") as server:
        server.wait_ready()
        load = [
            "--base-url", server.url, "--num-prompts", str(PROMPTS), "--max-concurrency", str(REQUESTS),
            "--output-len", str(TOKENS), "--disable-tqdm",
        ]  # fmt: skip
        command = [sys.executable, "-m", "nextn", "bench", "serve", *load]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            while running.poll() is None and running_requests(server.url) < REQUESTS:
                time.sleep(0.02)
            asked = {"output_dir": str(keep.absolute()), "num_steps": STEPS}
            httpx.post(server.url + "/start_profile", json=asked).raise_for_status()
        written = httpx.post(server.url + "/stop_profile", timeout=60).raise_for_status()
    return Path(written.json()["path"])


def running_requests(url: str) -> int:
    loads: list[dict[str, Any]] = httpx.get(url + "/v1/loads").json()["loads"]
    return sum(load["num_running_reqs"] for load in loads)


def steps_of(events: Sequence[Event]) -> list[Step]:
    """All steps except the first one, of the first engine in the trace."""
    found = [event for event in events if (event["cat"], event["name"]) == ("engine", "step")]
    own = sorted((each for each in found if each["pid"] == found[0]["pid"]), key=lambda each: each["ts"])
    ends = [each["ts"] + each["dur"] for each in own]
    return [
        Step(before, end, each["args"]) for before, end, each in zip(ends, ends[1:], own[1:], strict=False)
    ]


def within(events: Sequence[Event], begin: float, end: float) -> list[Event]:
    """Events of `LANES` that overlap with this time. Events "step", which contain the others, are left
    out."""
    return [
        each
        for each in events
        if each["cat"] in LANES
        and each["name"] != "step"
        and each["ts"] < end
        and each["ts"] + each["dur"] > begin
    ]


def busy(events: Sequence[Event], begin: float, end: float) -> float:
    """Microseconds in which the runner worked."""
    return sum(
        float(min(each["ts"] + each["dur"], end) - max(each["ts"], begin))
        for each in within(events, begin, end)
        if each["cat"] == "runner"
    )


def parts(events: Sequence[Event], step: Step) -> dict[str, float]:
    """Microseconds of each kind of interval in a step."""
    sums: dict[str, float] = {}
    for each in within(events, step.begin, step.end):
        kind = f"{each['cat']}: {each['name']}"
        took = min(each["ts"] + each["dur"], step.end) - max(each["ts"], step.begin)
        sums[kind] = sums.get(kind, 0.0) + took
    return sums


def medians(of_steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each kind over the steps. A kind that a step does not have counts as 0."""
    kinds = {kind for sums in of_steps for kind in sums}
    return {kind: median(sums.get(kind, 0.0) for sums in of_steps) for kind in kinds}


def distance(sums: dict[str, float], usual: dict[str, float]) -> float:
    return sum(abs(sums.get(kind, 0.0) - usual.get(kind, 0.0)) for kind in {*sums, *usual})


def picture(events: Sequence[Event], first: Step, second: Step, title: str) -> bytes:
    begin, end = first.begin, second.end
    figure = blank(LIGHT)
    figure.set_size_inches(11, 3.4)
    axes = figure.add_subplot(facecolor=LIGHT.background)
    lanes = list(dict.fromkeys(LANES.values()))
    shown = within(events, begin, end)
    for each in sorted(shown, key=lambda each: each["name"] not in WAITING):
        draw(axes, each, begin, end, lanes.index(LANES[each["cat"]]))
    for step in (first, second):
        axes.axvline((step.end - begin) / 1000, color=LIGHT.text, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, (end - begin) / 1000)
    axes.set_xlabel("ms", color=LIGHT.text)
    share = busy(events, begin, end) / (end - begin)
    counts = f"{second.counts['requests']} requests, {second.counts['rows']} rows"
    text = f"{title}: {(end - begin) / 1000:.1f} ms, kernels busy {share:.0%} of it ({counts})"
    axes.set_title(text, loc="left", fontsize=11, color=LIGHT.text)
    dress(axes, LIGHT)
    axes.grid(visible=False, axis="y")
    names = list(dict.fromkeys(each["name"] for each in sorted(shown, key=lambda each: each["ts"])))
    names = [name for name in [*COLORS, *names] if name in names and name not in WAITING]
    handles = [Patch(color=COLORS.get(name, OTHER), label=name) for name in dict.fromkeys(names)]
    handles.append(Patch(color=COLORS["launch"], label="waits for kernels"))
    figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False, fontsize=8.5)
    return png(figure)


def draw(axes: Axes, each: Event, begin: float, end: float, lane: int) -> None:
    start, stop = max(each["ts"], begin), min(each["ts"] + each["dur"], end)
    color = COLORS.get(each["name"], OTHER)
    left, width = (start - begin) / 1000, (stop - start) / 1000
    axes.barh(lane, width, left=left, height=0.62, color=color, linewidth=0)


if __name__ == "__main__":
    sys.exit(main())
