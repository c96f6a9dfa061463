"""What a request that is not plain costs the others in its steps.

    python benchmarks/mixed_rows.py [--model-path MODEL] [--requests 16] [--rounds 8] [--output FOLDER]

A step of plain requests is one native call (docs/performance.md). If one of its requests wants
log-probabilities or has penalties, the whole step takes the general way. Greedy requests have 20 prompt
tokens and 100 output tokens. None, one or a quarter of them are not plain, in turns. Results are the medians
over rounds of the median step, and their ratio to steps of plain requests. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from statistics import median

from last_line import tell

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED, EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams

PLAIN = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
OTHERS = {"logprobs": PLAIN.replace(logprobs=1), "penalty": PLAIN.replace(repetition_penalty=1.1)}


def turn(engine: Engine, name: str, requests: list[SamplingParams]) -> float:
    """Runs these requests at once and returns the median seconds of a step."""
    for i, params in enumerate(requests):
        prompt = [3 + (7 * i + 11 * j) % 400 for j in range(20)]
        engine.add(Request(f"{name} {i}", prompt, params))
    times = []
    while engine.has_work():
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    return median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    n, found = args.requests, []
    loads = {"plain": [PLAIN] * n}
    for kind, params in OTHERS.items():
        for count in sorted({1, max(1, n // 4)}):
            loads[f"{count} with {kind}"] = [params] * count + [PLAIN] * (n - count)
    for drafts in args.drafts:
        engine = Engine(
            EngineConfig(
                model_path=args.model_path, speculative_num_steps=drafts, overlap_schedule="off",
                disable_radix_cache=True,
            )
        )  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in loads}
        for round_ in range(args.rounds):
            for name, requests in loads.items():
                times[name].append(turn(engine, f"{round_} {name}", requests))
        plain = median(times["plain"])
        for name, each in times.items():
            ms, ratio = round(1e3 * median(each), 3), round(median(each) / plain, 3)
            found.append({"drafts": drafts, "load": name, "ms": ms, "over_plain": ratio})
            print(f"{drafts} drafts, {n} requests, {name}: {ms:.2f} ms, {ratio:.2f}", flush=True)
    tell(
        "mixed-rows",
        {"steps": found, "requests": n, "machine": dataclasses.asdict(this_machine())},
        args.output,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
