"""Measures the host's Python time of decode steps on a GPU, without a GPU.

python benchmarks/host_python.py                        # two minutes
python benchmarks/host_python.py --before ../before     # compare with another source tree

Requests of a fake model decode together, one step ahead of the results, as on a GPU, with the same engine,
executor and thread. But the steps compute nothing: a replacement of the graphs writes made-up results, and
its time is subtracted. So the result is Python's time. It does not include a CUDA driver's time for copies,
launches and events; copies on the CPU replace them. Each setting is measured several times, in turns, with a
new engine in a new process. Results are medians of the engines' medians, in microseconds per step. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from depth_claims import run_script
from last_line import tell
from source_trees import add_options, compare, decode_together

from nextn.bench.dev.micro.clock import quiet
from nextn.config import EngineConfig
from nextn.engine.device_runner import DeviceRunner
from nextn.engine.engine import Engine
from nextn.engine.rank import make_runner
from nextn.engine.thread import ThreadExecutor
from nextn.speculative.device import columns
from nextn.speculative.device import relay as row
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.shape import StepShape
from nextn.speculative.device.step import DeviceStep
from nextn.trace import TRACE

PROMPT = 16  # minimum tokens of a prompt. Lengths differ, so that new pages are needed at different steps
UNTIMED = 8  # first steps, which do not count
TOKEN = 100  # the only token that requests get
PARTS = ("plan", "launch", "read", "commit")


class MadeUp:
    """Replaces the graphs (`nextn.speculative.device.graphs.StepPasses`): it accepts two of three drafts."""

    def __init__(self, step: DeviceStep) -> None:
        self.inputs, self.results = step.inputs.numpy(), step.results.numpy()
        self.rows = step.relay.rows.numpy()
        self.seconds = 0.0

    def prepare(self, shape: StepShape) -> StepShape:
        return shape

    def run(self, shape: StepShape) -> None:
        begin = time.perf_counter()
        inputs, found = self.inputs[: shape.requests], self.results[: shape.requests]
        slots = inputs[:, columns.SLOT]
        rows = self.rows[slots]
        length, limit, over = rows[:, row.LENGTH], rows[:, row.LIMIT], rows[:, row.ENDED] != 0
        most = np.minimum(inputs[:, columns.MOST_DRAFTS], limit - length - 1)
        drafts = np.clip(np.minimum(rows[:, row.DRAFTS], most), 0, None)
        taken = np.where(over, 0, 1 + 2 * drafts // 3)
        depth = np.clip(np.minimum(inputs[:, columns.NUM_STEPS], limit - length - taken - 1), 0, None)
        found[:] = TOKEN
        numbers = length - 1, drafts, taken, depth, depth, depth, 0 * depth, over
        for column, each in enumerate(numbers):
            found[:, column] = each
        found[:, columns.BINS :] = 0
        after = length + taken
        rows[:, row.ENDED] |= after >= limit
        rows[:, row.LENGTH], rows[:, row.DRAFTS] = after, depth
        self.rows[slots] = rows
        self.seconds += time.perf_counter() - begin


def engine_of(requests: int, num_steps: int, model: str) -> tuple[Engine, MadeUp]:
    made: list[MadeUp] = []

    def make(config: EngineConfig) -> ThreadExecutor:
        plain = make_runner(config)
        runner = DeviceRunner(plain.info, plain.model, plain.pool, plain.drafter)
        pages = 1 + 1024 // plain.pool.page_size
        ops = SimpleNamespace(name="reference")
        model: Any = SimpleNamespace(device=torch.device("cpu"), ops=ops, row_align=1)  # is never called
        step = DeviceStep(model, plain.pool, Relay(requests, pages, model.device), requests)
        made.append(MadeUp(step))
        runner.begin_on_device(step, made[0])
        return ThreadExecutor(runner)

    config = EngineConfig(
        model_path=model, threads=1, speculative_num_steps=num_steps, max_running_requests=requests,
        context_length=1024, disable_radix_cache=True, kernel_backend="reference", device="cpu",
        overlap_schedule="on", kv_cache_tokens=1024 * requests,
    )  # fmt: skip
    return Engine(config, make), made[0]


def measured(model: str, requests: int, num_steps: int, steps: int) -> dict[str, float]:
    """Median microseconds of a whole step, and of each of its parts."""
    engine, passes = engine_of(requests, num_steps, model)
    prompts = [[(7 * i + 11 * j) % 2000 + 10 for j in range(PROMPT + i % PROMPT)] for i in range(requests)]
    decode_together(engine, prompts)
    found: dict[str, list[float]] = defaultdict(list)
    with quiet():
        for traced in (False, True):
            for _ in range(UNTIMED):
                engine.step()
            for _ in range(steps):
                passes.seconds = 0.0
                if traced:
                    TRACE.start("")
                begin = time.perf_counter()
                outputs = engine.step()
                whole = time.perf_counter() - begin - passes.seconds
                assert len(outputs) == requests
                if traced:
                    parts = part_seconds()
                    parts["launch"] -= passes.seconds
                    for name, seconds in parts.items():
                        found[name].append(seconds)
                else:
                    found["whole"].append(whole)
    return {name: 1e6 * median(each) for name, each in found.items()}


def part_seconds() -> dict[str, float]:
    """Seconds of each part of the traced step. The thread of steps can launch a step while the engine reads
    another."""
    names = {
        ("engine", "plan"): "plan", ("runner", "prepare"): "launch", ("runner", "launch"): "launch",
        ("engine", "result"): "read", ("engine", "commit"): "commit",
    }  # fmt: skip
    found = dict.fromkeys(PARTS, 0.0)
    for each in TRACE.take().intervals:
        name = names.get((each.lane, each.name))
        if name is not None:
            found[name] += 1e-9 * (each.end - each.begin)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, requests=(1, 16, 32, 64), num_steps=(0, 3), rounds=3)
    parser.set_defaults(model_path="fake:0.6")
    args = parser.parse_args()
    columns = {"whole": "step, us"} | {part: part for part in PARTS}
    tell("host-python", compare(args, __file__, "microseconds", columns), args.output)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(measured(sys.argv[2], *map(int, sys.argv[3:]))))
    else:
        run_script(main)
