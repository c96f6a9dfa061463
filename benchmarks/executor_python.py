"""Measures the Python time of a step, in the executor and in the engine around it.

python benchmarks/executor_python.py                          # three minutes on the embedded model
python benchmarks/executor_python.py --before ../before       # compare with a source tree with built kernels

Requests decode together, greedily. In every step the calls into the native library and the executor's `run`
are timed. Python time is the time outside of these native calls. It is several times longer than the same
Python in a loop, because the model's weights have gone through the caches before. Each number of requests and
draft depth is measured several times, in turns, with a new engine in a new process. Results are medians of
the engines' medians. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from depth_claims import run_script
from last_line import tell
from source_trees import add_options, compare, decode_together

from nextn.bench.dev.micro.call_clock import CallClock
from nextn.bench.dev.micro.clock import quiet
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.runner import Runner
from nextn.models.native import NativeModel

CALLS = ("step", "forward", "logits", "choices", "choose", "chains", "draft", "draft_logits")
PROMPT = 64  # tokens
UNTIMED = 8  # first steps, which do not count


class Timed:
    """Times an engine's steps. seconds: for each step the seconds in the engine outside of the executor, in
    the executor outside of native calls, and in native calls."""

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
    """Median milliseconds of a step in the executor, in the engine around it, and in native calls."""
    config = EngineConfig(
        model_path=model, threads=1, speculative_num_steps=num_steps, max_running_requests=requests,
        context_length=1024, disable_radix_cache=True,
    )  # fmt: skip
    engine = Engine(config)
    prompts = [[(7 * i + 11 * j) % 2000 + 10 for j in range(PROMPT)] for i in range(requests)]
    decode_together(engine, prompts)
    timed = Timed(engine)
    with quiet():
        for _ in range(UNTIMED + steps):
            timed.step()
    around, own, native = (1e3 * median(each) for each in zip(*timed.seconds[UNTIMED:], strict=True))
    return {"executor": own, "engine": around, "native": native}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, requests=(1, 16, 64), num_steps=(2, 0), rounds=5)
    args = parser.parse_args()
    columns = {"executor": "executor, ms", "engine": "engine around it, ms", "native": "native, ms"}
    tell("executor-python", compare(args, __file__, "milliseconds", columns), args.output)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(measured(sys.argv[2], *map(int, sys.argv[3:]))))
    else:
        run_script(main)
