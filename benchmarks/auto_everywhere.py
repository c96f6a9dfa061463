"""Measures automatic depth at every level of the native kernels that runs here, with one and two threads.

    python benchmarks/auto_everywhere.py [--concurrency 1,4,16,64] [--rounds 40] [--times 3] [--output FOLDER]
                                         [--cpu-isa portable,avx2] [--threads 1,2]

Runs depths_in_turn.py for each level and number of threads and puts the results in one table: automatic depth
over no drafts, and over the best fixed depth. With --output the result is written after each run. The same
command then continues where it stopped: results in the day's file are not measured again. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu_levels import add_level_options, levels_and_threads
from depth_claims import add_shared_options, positive, positives, run_script
from last_line import result_name, tell

from nextn.bench.errors import BenchError
from nextn.bench.machine import this_machine

DEPTHS_IN_TURN = Path(__file__).parent / "depths_in_turn.py"
THEME = "auto-everywhere"
BOUNDS = (0.98, 0.99)
RATIOS = {"auto_over_none": "auto over none", "auto_over_best": "auto over the best fixed depth"}
HEAD = (
    "| level | threads | requests | auto over none | of the best fixed depth | which |\n" + 6 * "|--:" + "|"
)

Cell = dict[str, Any]  # level, threads, requests, RATIOS, best


def read_cells(file: Path | None, settings: dict[str, object]) -> list[Cell]:
    """The cells that the file has. Raises ValueError if they were measured with other settings."""
    if file is None or not file.exists():
        return []
    kept = json.loads(file.read_text())
    if kept["settings"] != settings:
        raise ValueError(
            f"{file} was measured with {kept['settings']}, not {settings}; "
            "give another --output, or delete it"
        )
    cells: list[Cell] = kept["cells"]
    print(f"{len(cells)} cells are in {file}; delete it to measure them again", flush=True)
    return cells


def run_depths(args: argparse.Namespace, level: str, threads: int, loads: Sequence[int]) -> list[Cell]:
    options = {
        "--model-path": args.model_path, "--cpu-isa": level, "--threads": threads, "--rounds": args.rounds,
        "--times": args.times, "--concurrency": ",".join(map(str, loads)),
    }  # fmt: skip
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run([sys.executable, str(DEPTHS_IN_TURN), *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{DEPTHS_IN_TURN.name} {' '.join(words)} ended with exit code {done.returncode}")
    rows = json.loads(done.stdout.rstrip().splitlines()[-1])["loads"]
    return [cell_of(level, threads, row) for row in rows]


def cell_of(level: str, threads: int, row: dict[str, Any]) -> Cell:
    """Makes a cell. row: a load of depths_in_turn's result."""
    fixed = {name: ratio for name, ratio in row["over_none"].items() if name != "auto"}
    return {
        "level": level,
        "threads": threads,
        "requests": row["requests"],
        "auto_over_none": row["over_none"]["auto"],
        "auto_over_best": row["of_best_fixed"],
        "best": max(fixed, key=lambda name: fixed[name]),
    }


def line_of(cell: Cell) -> str:
    return (
        f"| {cell['level']} | {cell['threads']} | {cell['requests']} | {cell['auto_over_none']:.3f} "
        f"| {cell['auto_over_best']:.3f} | {cell['best']} |"
    )


def summary(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """For each ratio: the minimum, and how many cells are under each bound."""
    return {
        name: {
            "least": min(cell[name] for cell in cells),
            **{f"under_{bound}": sum(cell[name] < bound for cell in cells) for bound in BOUNDS},
        }
        for name in RATIOS
    }


def result_of(settings: dict[str, object], cells: Sequence[Cell]) -> dict[str, object]:
    machine = dataclasses.asdict(this_machine())
    return {"settings": settings, "machine": machine, "summary": summary(cells), "cells": cells}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    add_level_options(parser)
    parser.add_argument("--concurrency", type=positives, default="1,2,4,8,16,32,64", help="requests at once")
    parser.add_argument("--rounds", type=positive, default=40, help="turns of each side (default: 40)")
    parser.add_argument(
        "--times", type=positive, default=3, help="repetitions, with new engines each (default: 3)"
    )
    args = parser.parse_args()
    places = levels_and_threads(args)
    settings = {"model": args.model_path, "rounds": args.rounds, "times": args.times}
    file = args.output / f"{result_name(THEME)}.json" if args.output else None
    cells = read_cells(file, settings)
    print(HEAD)
    for cell in cells:
        print(line_of(cell))
    for level, threads in places:
        known = {c["requests"] for c in cells if (c["level"], c["threads"]) == (level, threads)}
        if not (loads := [n for n in args.concurrency if n not in known]):
            continue
        cells += (found := run_depths(args, level, threads, loads))
        print(*map(line_of, found), sep="\n", flush=True)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result_of(settings, cells)) + "\n")
    for name, ratios in summary(cells).items():
        counts = ", ".join(f"{ratios[f'under_{bound}']} under {bound}" for bound in BOUNDS)
        print(f"{RATIOS[name]}: least {ratios['least']:.3f}; of {len(cells)} cells {counts}")
    tell(THEME, result_of(settings, cells), None)  # the file is written already
    return 0


if __name__ == "__main__":
    run_script(main)
