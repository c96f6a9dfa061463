"""Compares an engine of two ranks with one thread each (--tp-size 2) and one process with two threads.

    python benchmarks/synthetic_checkpoint.py --output 1b
    python benchmarks/tensor_parallel.py --model-path 1b [--concurrency 1,8,32] [--rounds 12] [--size 2]
                                         [--busy 1] [--cpu-isa avx2] [--output FOLDER]

The engines always run as many requests as the load has, without drafts and with two; when one ends, the next
begins. A turn is half a second of steps. In a round every side has one turn, in a new random order. Speed is
tokens per step over all rounds, divided by the median of a step's time relative to its round. Two more things
are measured: the share of its time that rank 0 waits for the other rank, and the time of a gather of one row
in shared memory. With --busy there is other work on the machine. The last line is JSON.

Claims: 0.9 times the speed of one process; 5 us for a row.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import multiprocessing
from collections import deque
from collections.abc import Iterator

from depth_claims import NO_COST_FILE, add_shared_options, positive, positives, run_script
from last_line import tell
from side import Side, load_prompts, measure

from nextn.bench.dev.micro.gather import measure_gather
from nextn.bench.machine import this_machine
from nextn.config import CPU_LEVELS, EngineConfig

DRAFTS = (0, 2)
TURN = 0.5  # seconds
ROW = 8192  # bytes, from each rank to the other


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    parser.add_argument("--cpu-isa", default="auto", choices=("auto", *CPU_LEVELS), help="CPU level")
    parser.add_argument("--concurrency", type=positives, default="1,8,32", help="requests at once")
    parser.add_argument("--rounds", type=positive, default=12, help="turns of each side (default: 12)")
    parser.add_argument("--size", type=positive, default=2, help="ranks, and threads of the other side")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside (default: 0)")
    args = parser.parse_args()
    with busy(args.busy):
        return compare(args)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=deque, args=(itertools.count(), 0), daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def compare(args: argparse.Namespace) -> int:
    size: int = args.size
    prompts = load_prompts(args.model_path)
    config = EngineConfig(model_path=args.model_path, cpu_isa=args.cpu_isa, threads=size, **NO_COST_FILE)
    ranks = dataclasses.replace(config, tp_size=size, threads=1)
    rows, waiting = [], 0.0
    sides: dict[str, Side] = {}
    for drafts in DRAFTS:
        for name, each in (("one", config), ("ranks", ranks)):
            side = Side(each, drafts, prompts, name=f"{name}-{drafts}")
            sides[side.name] = side
    print(f"| requests | drafts | {size} ranks over one process | waiting |\n|--:|--:|--:|--:|")
    for n in args.concurrency:
        waited = {name: side.engine.stats().waited for name, side in sides.items()}
        begin = {name: side.busy for name, side in sides.items()}
        speed = measure(list(sides.values()), n, args.rounds, TURN)
        for drafts in DRAFTS:
            name = f"ranks-{drafts}"
            ratio = speed[name] / speed[f"one-{drafts}"]
            waiting = (sides[name].engine.stats().waited - waited[name]) / (sides[name].busy - begin[name])
            rows.append({"requests": n, "drafts": drafts, "over_one_process": ratio, "waiting": waiting})
            print(f"| {n} | {drafts} | {ratio:.3f} | {waiting:.1%} |", flush=True)
    gather = measure_gather(2 * ROW).seconds
    print(f"one row of {ROW} bytes, each to the other rank: {1e6 * gather:.1f} us")
    result = {
        "loads": rows, "gather_seconds": gather, "model": args.model_path, "size": size, "busy": args.busy,
        "cpu_isa": sides["one-0"].engine.startup.get("cpu_isa"), "rounds": args.rounds,
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("tensor-parallel-busy" if args.busy else "tensor-parallel", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
