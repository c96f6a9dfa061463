"""The Python of a step: time outside of the native kernels, in the executor and in the engine around it.

python benchmarks/executor_python.py                                      # a minute on the embedded model
python benchmarks/executor_python.py --requests 1,16,64 --num-steps 2,0 --output benchmarks/results

Requests decode together, greedily. Of every step the calls into the native library are timed, and so is the
executor's `run`; what is left of either is Python. Medians; the last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from last_line import tell

from nextn.bench.dev.micro.call_clock import CallClock
from nextn.bench.dev.micro.clock import quiet
from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED, EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.runner import Runner
from nextn.models.native import NativeDeepseekV3
from nextn.request import Request, SamplingParams

CALLS = ("step", "forward", "logits", "choices", "choose", "chains", "draft", "draft_logits")
PROMPT = 64  # tokens
UNTIMED = 8  # steps that come first


class Timed:
    """Of each step the seconds in the engine, in its executor, and in the executor's native calls."""

    def __init__(self, engine: Engine) -> None:
        runner: Any = engine._executor
        assert isinstance(runner, Runner), "steps are measured in this process"
        assert isinstance(runner.model, NativeDeepseekV3), "the native kernels are measured"
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


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--requests", type=numbers, default=[1, 16, 64])
    parser.add_argument("--num-steps", type=numbers, default=[2, 0], help="depths of drafts")
    parser.add_argument("--steps", type=int, default=100, help="that are timed (default: %(default)s)")
    parser.add_argument("--note", default="", help="is kept with the result")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    rows = []
    print("| drafts | requests | executor, ms | engine around it, ms | native, ms |\n|--:|--:|--:|--:|--:|")
    for num_steps in args.num_steps:
        for requests in args.requests:
            found = measured(args.model_path, requests, num_steps, args.steps)
            rows.append({"num_steps": num_steps, "requests": requests, **found})
            cells = " | ".join(f"{found[name]:.3f}" for name in ("executor", "engine", "native"))
            print(f"| {num_steps} | {requests} | {cells} |", flush=True)
    machine = dataclasses.asdict(this_machine())
    result = {"steps": rows, "model": args.model_path, "note": args.note, "machine": machine}
    tell("executor-python", result, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
