"""Compares automatic depth with fixed depths, in turns so short that other load slows all sides equally.

    python benchmarks/depths_in_turn.py [--concurrency 1,4,16,64] [--rounds 40] [--times 3] [--output FOLDER]
                                        [--cpu-isa avx2] [--threads 2]

Each side has its own engine, all in one process. Each engine always runs as many requests as the load has;
when one ends, the next begins. On a CPU the engines share weights, buffers and threads, and each has its own
pages (side.py). A turn is about 60 ms of steps. In a round every side has one turn, in a new random order.
Speed is tokens per step over all rounds, divided by the median of a step's time relative to its round.
(`nextn bench compare` measures over seconds, and some machines change their speed by half between two of its
loads.) The first quarter of the rounds is warm-up. The measurement can be repeated with new engines
(--times). The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import random
from statistics import geometric_mean

from depth_claims import add_engine_options, add_shared_options, positive, positives, run_script
from last_line import tell
from side import AUTO, Side, load_prompts, measure, sharing

from nextn.bench.machine import this_machine
from nextn.config import EngineConfig

NUM_STEPS = (0, 1, 2, 3, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    add_engine_options(parser)
    parser.add_argument("--concurrency", type=positives, default="1,2,4,8,16,32,64", help="requests at once")
    parser.add_argument(
        "--rounds", type=positive, default=40, help="turns of each side (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument(
        "--times", type=positive, default=1, help="repetitions, with new engines each (default: %(default)s)"
    )
    args = parser.parse_args()
    loads: list[int] = args.concurrency
    prompts = load_prompts(args.model_path)
    found: dict[int, list[dict[str, float]]] = {n: [] for n in loads}
    config = EngineConfig(model_path=args.model_path, cpu_isa=args.cpu_isa, threads=args.threads)
    sides: list[Side] = []
    for _ in range(args.times):
        sides.clear()
        gc.collect()  # frees the engines of the last time: large models may not fit into memory twice
        order = random.sample((*NUM_STEPS, AUTO), len(NUM_STEPS) + 1)
        sides += sharing(config, order, prompts, args.temperature)
        for n in loads:
            found[n].append(measure(sides, n, args.rounds))
    print("| requests | " + " | ".join(f"{d} drafts" for d in NUM_STEPS[1:]) + " | auto | of the best |")
    print("|--:|" + "--:|" * (len(NUM_STEPS) + 1))
    rows = []
    for n, times in found.items():
        over = {name: geometric_mean([t[name] / t["0"] for t in times]) for name in times[0]}
        best = max(over[str(d)] for d in NUM_STEPS)
        each = [t["auto"] / max(t[str(d)] for d in NUM_STEPS) for t in times]
        rows.append(
            {"requests": n, "over_none": over, "of_best_fixed": over["auto"] / best, "each_time": each}
        )
        cells = [f"{over[str(d)]:.2f}" for d in NUM_STEPS[1:]]
        cells += [f"{over['auto']:.2f}", f"{over['auto'] / best:.3f}"]
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)
    result = {
        "loads": rows, "model": args.model_path, "temperature": args.temperature, "rounds": args.rounds,
        "times": args.times, "cpu_isa": sides[0].engine.startup.get("cpu_isa"),
        "threads": sides[0].engine.startup["threads"],
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("depths-in-turn", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
