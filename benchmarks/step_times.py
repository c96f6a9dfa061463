"""Compares step times of two source trees of nextn, in turns, to check that a change costs no time.

    git worktree add ../before COMMIT && (cd ../before && python csrc/build.py)
    python benchmarks/step_times.py ../before [--rows 1,3,16,64,512] [--rounds 30] [--output FOLDER]
                                    [--cpu-isa LEVEL] [--threads N]

Each tree's engine is in its own process, without drafts. In a round both have one turn, in a new random
order. With up to 64 rows, a turn is some decode steps of as many requests; with more, it is the one step of a
prompt with that many tokens. The result is the median over rounds of the ratio of a round's two turns. An
engine's speed can differ by some percent for as long as it runs, depending on the addresses of its memory. So
the measurement is repeated with new processes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean, median

from depth_claims import add_engine_options, add_shared_options, positive, positives, run_script
from last_line import tell

from nextn.bench.machine import this_machine
from nextn.config import usable_cores

DECODING = 64  # maximum rows of decode steps; more rows are a prompt
TURN = 24  # decode steps of a turn
CHILD = f"""
import sys, time
from statistics import median
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams

config = EngineConfig(
    model_path=sys.argv[1], threads=int(sys.argv[2]), speculative_num_steps=0, disable_radix_cache=True,
    context_length=1024, chunked_prefill_size=1024, cpu_isa=sys.argv[3],
)
engine = Engine(config)
print(flush=True)
for count, line in enumerate(sys.stdin):
    rows = int(line)
    requests = rows if rows <= {DECODING} else 1
    length = 16 if rows <= {DECODING} else rows
    for i in range(requests):
        prompt = [(7 * i + 11 * j + count) % 2000 + 10 for j in range(length)]
        params = SamplingParams(max_tokens=999, temperature=0.0, ignore_eos=True)
        engine.add(Request(f"{{count}} {{i}}", prompt, params))
    times = []
    for step in range({TURN} + 4 if rows <= {DECODING} else 1):
        begin = time.perf_counter()
        engine.step()
        if step >= 4 or rows > {DECODING}:
            times.append(time.perf_counter() - begin)
    for i in range(requests):
        engine.abort(f"{{count}} {{i}}")
    while engine.has_work():
        engine.step()
    print(median(times), flush=True)
"""


class Tree:
    """An engine of the source tree in `folder`."""

    def __init__(self, folder: Path, model: str, threads: int, level: str) -> None:
        env = os.environ | {"PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, model, str(threads), level],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=folder,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with {self.process.wait()}: see above")
        return line

    def step(self, rows: int) -> float:
        """Runs a turn with this number of rows. Returns the median seconds of a step."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{rows}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="the other source tree, with its kernels built")
    add_shared_options(parser)
    add_engine_options(parser)
    parser.add_argument("--rows", type=positives, default="1,3,16,64,512", help="rows of a step")
    parser.add_argument(
        "--rounds", type=positive, default=30, help="turns of each tree (default: %(default)s)"
    )
    parser.add_argument(
        "--times", type=positive, default=3, help="repetitions, with new engines each (default: %(default)s)"
    )
    args = parser.parse_args()
    threads = args.threads or usable_cores()
    now = Path(__file__).resolve().parent.parent
    ratios: dict[int, list[float]] = {rows: [] for rows in args.rows}
    seconds: dict[int, list[float]] = {rows: [] for rows in args.rows}
    for _ in range(args.times):
        folders = random.sample((args.before.resolve(), now), 2)
        trees = {folder: Tree(folder, args.model_path, threads, args.cpu_isa) for folder in folders}
        for rows in args.rows:
            found = []
            for _ in range(args.rounds):
                took = {folder: trees[folder].step(rows) for folder in random.sample(folders, 2)}
                found.append(took[now] / took[args.before.resolve()])
                seconds[rows].append(took[now])
            ratios[rows].append(median(found[args.rounds // 5 :]))
        for tree in trees.values():
            tree.close()
    print("| rows | now, ms | of before | each time |\n|--:|--:|--:|---|")
    for rows, each in ratios.items():
        cells = ", ".join(f"{ratio:.3f}" for ratio in each)
        print(f"| {rows} | {1e3 * median(seconds[rows]):.2f} | {geometric_mean(each):.3f} | {cells} |")
    result = {
        "of_before": ratios, "seconds": {rows: median(each) for rows, each in seconds.items()},
        "model": args.model_path, "threads": threads, "cpu_isa": args.cpu_isa, "rounds": args.rounds,
        "before": subprocess.run(
            ["git", "-C", str(args.before), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("step-times", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
