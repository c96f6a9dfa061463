"""Compares the speed-up by MTP at one request with its limit, which follows from the bytes of a step.

    python benchmarks/synthetic_checkpoint.py --output DIR --size 1b --acceptance 0.9
    python benchmarks/mtp_roofline.py --model-path DIR [--depths 1,2,3,4] [--output benchmarks/results]

A step at one request takes mainly the time to read the model's weights. So the limit is
allowed = accept length x bytes(decode) / (bytes(verify of k + 1 rows) + bytes(k drafts)), with the experts
that the kernels read; reached = tokens/s with k drafts over tokens/s without. The engines run in one process,
in turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from last_line import tell

from nextn.bench.dev.micro.ceilings import make_ceilings
from nextn.bench.dev.micro.steps import StepBench, StepMeasurement
from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED, EngineConfig
from nextn.engine.engine import Engine


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--depths", default="1,2,3,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="pairs of steps in a round")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    depths = [0, *map(int, args.depths.split(","))]
    ceilings = make_ceilings(None, squares=())
    found: dict[int, list[StepMeasurement]] = {k: [] for k in depths}
    for _ in range(args.rounds):
        for k in depths:
            config = EngineConfig(model_path=args.model_path, speculative_num_steps=k, threads=args.threads)
            bench = StepBench(config, ceilings, args.steps, 60.0)
            found[k].append(bench.decode(Engine(bench.config)))
    plain = found[0]
    speed = statistics.median(f.committed / f.seconds for f in plain)
    rows = []
    print(
        f"{'drafts':>6} {'tok/s':>8} {'accept':>7} {'MB/step':>8} {'allowed':>8} {'reached':>8} {'share':>6}"
    )
    for k in depths:
        ours = statistics.median(f.committed / f.seconds for f in found[k])
        accept = statistics.mean(f.committed for f in found[k])
        moved = statistics.mean(f.work.bytes for f in found[k])
        allowed = accept * statistics.mean(f.work.bytes for f in plain) / moved
        reached = ours / speed
        rows.append(
            {"drafts": k, "tok_s": round(ours, 2), "accept_length": round(accept, 4), "bytes": round(moved),
             "allowed": round(allowed, 4), "reached": round(reached, 4)}
        )  # fmt: skip
        print(
            f"{k:>6} {ours:>8.1f} {accept:>7.2f} {moved / 1e6:>8.1f} {allowed:>7.2f}x {reached:>7.2f}x "
            f"{reached / allowed:>6.0%}"
        )
    result = {"model": Path(args.model_path).name, "depths": rows, "machine": this_machine().line}
    tell(f"mtp-roofline-{result['model']}", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
