"""Runs `nextn demo` at every level of the native kernels that runs here, with one and two threads.

    python benchmarks/demo_levels.py [--cpu-isa avx2,avx512] [--threads 1,2] [--quick] [--output FOLDER]

Prints the ratio of tokens/s with and without MTP, for each number of requests. Every text is compared too; a
text that differs is an error. The last line is JSON. On a busy machine the ratios are not reliable.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cpu_levels import add_level_options, levels_and_threads
from depth_claims import add_shared_options, run_script
from last_line import tell

from nextn.bench.errors import BenchError
from nextn.bench.machine import this_machine


def run_demo(model: str, level: str, threads: int, quick: bool) -> list[dict[str, Any]]:
    """Runs the demo once and returns a cell for each number of requests. Raises BenchError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--model-path",
            model,
            "--cpu-isa",
            level,
            "--threads",
            str(threads),
            "--output-dir",
            folder,
        ]
        command = [sys.executable, "-m", "nextn", "demo", *options, *["--quick"] * quick]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise BenchError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")
        points = json.loads((Path(folder) / "results.json").read_text())["points"]
    kept = ("ratio", "accept_length", "auto")
    return [
        {"level": level, "threads": threads, "requests": p["concurrency"], **{name: p[name] for name in kept}}
        for p in points
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    add_level_options(parser)
    parser.add_argument(
        "--quick", action="store_true", help="half the prompts, and one round in place of two"
    )
    args = parser.parse_args()
    cells: list[dict[str, Any]] = []
    print("| level | threads | requests | with MTP over without |\n|---|--:|--:|--:|")
    for level, threads in levels_and_threads(args):
        for cell in run_demo(args.model_path, level, threads, args.quick):
            cells.append(cell)
            print(f"| {level} | {threads} | {cell['requests']} | {cell['ratio']:.3f} |", flush=True)
    machine = dataclasses.asdict(this_machine())
    tell("demo-levels", {"model": args.model_path, "machine": machine, "cells": cells}, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
