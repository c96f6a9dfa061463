"""Measures what reading weights past the outer caches saves in decode steps (nextn/ops/cpu/reading.py).

    python benchmarks/past_caches.py                           # two minutes on the embedded model
    python benchmarks/past_caches.py --cpu-isa portable --threads 1

Four engines in one process take turns of eight steps: two read the target's weights past the caches if there
are few rows, two read all weights through the caches. Two equal engines can differ by 5 %, because their
memory is in different places. The times are those of whole steps, Python included: medians over the steps,
means over the engines. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from statistics import fmean, median

from depth_claims import add_engine_options, add_shared_options, positive
from last_line import tell
from source_trees import decode_together, numbers

import nextn.engine.model
from nextn.bench.dev.micro.clock import quiet
from nextn.bench.machine import this_machine
from nextn.config import EngineConfig
from nextn.engine.engine import Engine

PROMPT = 32  # tokens
TURN, UNTIMED = 8, 2  # steps of a turn, and those of them that come first and are not timed
ORDER = (False, True, True, False)  # of each engine: does it read past the caches?


def engines(config: EngineConfig) -> list[Engine]:
    made, usual = [], nextn.engine.model.non_temporal
    try:
        for past in ORDER:
            nextn.engine.model.non_temporal = lambda level, size, past=past: past
            made.append(Engine(config))
    finally:
        nextn.engine.model.non_temporal = usual
    return made


def measured(sides: list[Engine], requests: int, turns: int) -> dict[str, float]:
    """Milliseconds of a step: through and past the caches."""
    prompts = [[(7 * i + 11 * j) % 2000 + 10 for j in range(PROMPT)] for i in range(requests)]
    for engine in sides:
        decode_together(engine, prompts)
    seconds: list[list[float]] = [[] for _ in sides]
    with quiet():
        for _, (engine, found), step in itertools.product(
            range(turns), list(zip(sides, seconds, strict=True)), range(TURN)
        ):
            begin = time.perf_counter()
            engine.step()
            if step >= UNTIMED:
                found.append(time.perf_counter() - begin)
    for engine in sides:
        for i in range(requests):
            engine.abort(str(i))
        while engine.must_step():
            engine.step()
    each = list(zip(ORDER, map(median, seconds), strict=True))
    return {
        name: 1e3 * fmean(found for past, found in each if past == wanted)
        for name, wanted in (("through", False), ("past", True))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    parser.add_argument("--requests", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--num-steps", type=numbers, default=[0, 2], help="drafts of a request")
    add_engine_options(parser)
    parser.add_argument("--turns", type=positive, default=20, help="turns of each engine")
    args = parser.parse_args()
    rows = []
    print("| drafts | requests | through the caches, ms | past them, ms | ratio |")
    print("|--:|--:|--:|--:|--:|")
    for num_steps in args.num_steps:
        config = EngineConfig(
            model_path=args.model_path, threads=args.threads, cpu_isa=args.cpu_isa, context_length=512,
            speculative_num_steps=num_steps, max_running_requests=max(args.requests),
            disable_radix_cache=True,
        )  # fmt: skip
        sides = engines(config)
        for requests in args.requests:
            found = measured(sides, requests, args.turns)
            ratio = found["past"] / found["through"]
            rows.append({"num_steps": num_steps, "requests": requests, **found, "ratio": ratio})
            print(
                f"| {num_steps} | {requests} | {found['through']:.3f} | {found['past']:.3f} | {ratio:.3f} |"
            )
    result = {
        "milliseconds": rows, "model": args.model_path, "threads": args.threads, "cpu_isa": args.cpu_isa,
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("past-caches", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
