"""Compares an engine with overlap scheduling and one without it, in turns.

    python benchmarks/overlap.py [--model-path MODEL] [--rounds 8] [--output FOLDER]

Greedy requests have 20 prompt tokens and 100 output tokens. Several numbers of requests at once are measured,
without drafts and with two. Results are the median over rounds of tokens per second, and the ratio of the two
medians. There is no server: the engine's process has all cores. For a measurement with a server, use
benchmarks/server_share.py --server-options "--overlap-schedule on". The last line is JSON.
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

TOKENS = 100


def turn(engine: Engine, count: int, name: str) -> float:
    """Runs `count` requests at once and returns tokens per second."""
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    for i in range(count):
        prompt = [3 + (7 * i + 11 * j) % 400 for j in range(20)]
        engine.add(Request(f"{name} {i}", prompt, params))
    begin = time.perf_counter()
    while engine.has_work():
        engine.step()
    return count * TOKENS / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16, 32, 64])
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    found = []
    for drafts in args.drafts:
        engines = {
            schedule: Engine(
                EngineConfig(
                    model_path=args.model_path, speculative_num_steps=drafts, overlap_schedule=schedule,
                    disable_radix_cache=True, threads=args.threads,
                )
            )
            for schedule in ("off", "on")
        }  # fmt: skip
        for count in args.requests:
            speeds: dict[str, list[float]] = {schedule: [] for schedule in engines}
            for round_ in range(args.rounds):
                for schedule, engine in engines.items():
                    speeds[schedule].append(turn(engine, count, str(round_)))
            off, on = (median(speeds[schedule]) for schedule in ("off", "on"))
            found.append(
                {"drafts": drafts, "requests": count, "off": round(off), "on": round(on),
                 "ratio": round(on / off, 3)}
            )  # fmt: skip
            print(
                f"{drafts} drafts, {count} requests: {off:.0f} off, {on:.0f} on, {on / off:.3f}", flush=True
            )
    machine = dataclasses.asdict(this_machine())
    theme = "overlap" if args.threads is None else f"overlap-threads-{args.threads}"
    tell(theme, {"tokens_per_second": found, "machine": machine}, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
