"""The Python of a step: time outside of the native kernels, in the executor and in the engine around it.

python benchmarks/executor_python.py                          # three minutes on the embedded model
python benchmarks/executor_python.py --before ../before       # beside another source tree, kernels built

Requests decode together, greedily. Of every step the calls into the native library are timed, and so is the
executor's `run`; what is left of either is Python. The model's weights have gone through the caches before:
this is several times what the same Python takes in a loop. Each number of requests and depth of drafts is
measured several times, by turns, with a new engine in a new process: medians of the engines' medians. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from depth_claims import add_shared_options, positive, run_script
from last_line import tell

from nextn.bench.dev.micro.call_clock import CallClock
from nextn.bench.dev.micro.clock import quiet
from nextn.bench.machine import this_machine
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.runner import Runner
from nextn.models.native import NativeModel
from nextn.request import Request, SamplingParams

CALLS = ("step", "forward", "logits", "choices", "choose", "chains", "draft", "draft_logits")
PROMPT = 64  # tokens
UNTIMED = 8  # steps that come first


class Timed:
    """Of each step the seconds in the engine, in its executor, and in the executor's native calls."""

    def __init__(self, engine: Engine) -> None:
        runner: Any = engine._executor
        assert isinstance(runner, Runner), "steps are measured in this process"
        assert isinstance(runner.model, NativeModel), "the native kernels are measured"
        self.engine = engine
        kernels = runner.model._kernels
        self.clock = CallClock(
            [(kernels, f"nx_{name}") for name in CALLS if getattr(kernels, f"nx_{name}", None) is not None]
        )
        self.seconds: list[tuple[float, float, float]] = []
        self._ran = 0.0
        self._run: Callable[..., Any] = runner.run
        runner.run = self.run

    def run(self, plan: Any) -> Any:
        begin = time.perf_counter()
        result = self._run(plan)
        self._ran = time.perf_counter() - begin
        return result

    def step(self) -> None:
        self.clock.reset()
        with self.clock:
            begin = time.perf_counter()
            self.engine.step()
            whole = time.perf_counter() - begin
        native = self.clock.total + self.clock.own
        self.seconds.append((whole - self._ran, self._ran - native, native))


def measured(model: str, requests: int, num_steps: int, steps: int) -> dict[str, float]:
    """Milliseconds a step, by whose they are."""
    config = EngineConfig(
        model_path=model, threads=1, speculative_num_steps=num_steps, max_running_requests=requests,
        context_length=1024, disable_radix_cache=True,
    )  # fmt: skip
    engine = Engine(config)
    for i in range(requests):
        prompt = [(7 * i + 11 * j) % 2000 + 10 for j in range(PROMPT)]
        engine.add(Request(str(i), prompt, SamplingParams(max_tokens=900, temperature=0, ignore_eos=True)))
    while engine.stats().waiting or any(not r.decoding for r in engine._scheduler.running):
        engine.step()
    timed = Timed(engine)
    with quiet():
        for _ in range(UNTIMED + steps):
            timed.step()
    around, own, native = (1e3 * median(each) for each in zip(*timed.seconds[UNTIMED:], strict=True))
    return {"executor": own, "engine": around, "native": native}


def measured_in(tree: Path, *settings: object, script: str = __file__) -> dict[str, float]:
    """`measured` of the script, of the source tree in that folder."""
    command = [sys.executable, script, "--here", *map(str, settings)]
    env = os.environ | {"PYTHONPATH": str(tree)}
    found: dict[str, float] = json.loads(
        subprocess.run(command, env=env, check=True, capture_output=True).stdout
    )
    return found


def commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    parser.add_argument("--before", type=Path, help="another source tree", metavar="FOLDER")
    parser.add_argument("--requests", type=numbers, default=[1, 16, 64])
    parser.add_argument("--num-steps", type=numbers, default=[2, 0], help="depths of drafts")
    parser.add_argument("--steps", type=positive, default=100, help="of an engine (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=5, help="engines (default: %(default)s)")
    args = parser.parse_args()
    trees = {"now": Path(__file__).resolve().parent.parent}
    if args.before is not None:
        trees["before"] = args.before.resolve()
    rows = []
    print("| drafts | requests | tree | executor, ms | engine around it, ms | native, ms |")
    print("|--:|--:|---|--:|--:|--:|")
    for num_steps, requests in itertools.product(args.num_steps, args.requests):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(args.rounds):
            for name in random.sample(sorted(trees), len(trees)):
                found[name].append(measured_in(trees[name], args.model_path, requests, num_steps, args.steps))
        for name, each in found.items():
            times = {key: median(one[key] for one in each) for key in each[0]}
            rows.append({"tree": name, "num_steps": num_steps, "requests": requests, **times})
            cells = " | ".join(f"{times[key]:.3f}" for key in ("executor", "engine", "native"))
            print(f"| {num_steps} | {requests} | {name} | {cells} |", flush=True)
    machine = dataclasses.asdict(this_machine())
    result = {
        "milliseconds": rows, "model": args.model_path, "rounds": args.rounds, "machine": machine,
        "commits": {name: commit(tree) for name, tree in trees.items()},
    }  # fmt: skip
    tell("executor-python", result, args.output)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(measured(sys.argv[2], *map(int, sys.argv[3:]))))
    else:
        run_script(main)
