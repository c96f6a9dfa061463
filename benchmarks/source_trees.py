"""Shared code of scripts that time an engine's Python in this source tree and in another one, in turns."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from depth_claims import add_shared_options, positive

from nextn.bench.machine import this_machine
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams


def add_options(
    parser: argparse.ArgumentParser, requests: Sequence[int], num_steps: Sequence[int], rounds: int
) -> None:
    """Adds the options. requests, num_steps, rounds: defaults."""
    add_shared_options(parser)
    parser.add_argument("--before", type=Path, help="another source tree", metavar="FOLDER")
    parser.add_argument("--requests", type=numbers, default=[*requests])
    parser.add_argument("--num-steps", type=numbers, default=[*num_steps], help="drafts of a request")
    parser.add_argument(
        "--steps", type=positive, default=100, help="steps of an engine (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=positive, default=rounds, help="engines (default: %(default)s)")


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def decode_together(engine: Engine, prompts: Sequence[list[int]]) -> None:
    """Adds requests with these prompts and runs steps until all of them decode."""
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, SamplingParams(max_tokens=900, temperature=0, ignore_eos=True)))
    while engine.stats().waiting or any(not r.decoding for r in engine._scheduler.running):
        engine.step()


def compare(args: argparse.Namespace, script: str, unit: str, columns: dict[str, str]) -> dict[str, Any]:
    """Measures each setting in each tree; prints a line for each and returns the result. columns: key in the
    JSON that `script --here MODEL REQUESTS NUM_STEPS STEPS` prints -> heading. unit: the key of the rows in
    the result."""
    trees = {"now": Path(script).resolve().parent.parent}
    if args.before is not None:
        trees["before"] = args.before.resolve()
    rows: list[dict[str, Any]] = []
    print("| drafts | requests | tree | " + " | ".join(columns.values()) + " |")
    print("|--:|--:|---" + "|--:" * len(columns) + "|")
    for num_steps, requests in itertools.product(args.num_steps, args.requests):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(args.rounds):
            for name in random.sample(sorted(trees), len(trees)):
                settings = args.model_path, requests, num_steps, args.steps
                found[name].append(_measured_in(trees[name], script, *settings))
        for name, each in found.items():
            times = {key: median(one[key] for one in each) for key in columns}
            rows.append({"tree": name, "num_steps": num_steps, "requests": requests, **times})
            cells = " | ".join(f"{took:,.{0 if unit == 'microseconds' else 3}f}" for took in times.values())
            print(f"| {num_steps} | {requests} | {name} | {cells} |", flush=True)
    return {
        unit: rows, "model": args.model_path, "rounds": args.rounds,
        "machine": dataclasses.asdict(this_machine()),
        "commits": {name: _commit(tree) for name, tree in trees.items()},
    }  # fmt: skip


def _measured_in(tree: Path, script: str, *settings: object) -> dict[str, float]:
    """Runs the script with the source tree in that folder and returns its JSON."""
    command = [sys.executable, script, "--here", *map(str, settings)]
    env = os.environ | {"PYTHONPATH": str(tree)}
    found: dict[str, float] = json.loads(
        subprocess.run(command, env=env, check=True, capture_output=True).stdout
    )
    return found


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
