"""Measures automatic depth under a changing load: many requests for some seconds, then one, and again.

    python benchmarks/load_by_turns.py [--many 64] [--seconds 3] [--times 10] [--output FOLDER]
                                       [--cpu-isa avx2] [--threads 2]

Three engines are in one process: automatic depth, no drafts, two drafts. All get the same loads, in turns of
about 60 ms, so that other work on the machine slows all of them equally. The order of each round is random:
an engine with two turns in a row finds its caches warm, and this must happen equally often to all. Times are
an engine's own. When the load changes, the oldest requests continue if they still fit, and the others are
aborted. When a text ends, a new request begins.

Claim: at both loads, tokens/s with automatic depth are at least 0.97 of the better of no and two drafts, by
the median over the repetitions of the load. The script also reports how long after a change of the load
automatic depth switched between drafts and none, to the end of a turn. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from depth_claims import add_engine_options, add_shared_options, check_claim, positive, run_script, seconds
from last_line import tell
from side import AUTO, Side, load_prompts, sharing

from nextn.bench.machine import this_machine
from nextn.config import EngineConfig

NONE, FIXED = 0, 2  # drafts


class Phase(NamedTuple):
    """The results of one side during one load."""

    tokens: int
    seconds: float
    drafting: list[tuple[float, bool]]  # after each turn: (own seconds of this load, whether it drafts)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def run_phase(sides: Sequence[Side], concurrency: int, seed: int, seconds: float) -> dict[str, Phase]:
    for side in sides:
        side.load(concurrency, seed, keep=concurrency)
    tokens, took = dict.fromkeys([s.name for s in sides], 0), dict.fromkeys([s.name for s in sides], 0.0)
    drafting: dict[str, list[tuple[float, bool]]] = {name: [] for name in tokens}
    order, rng = list(sides), random.Random(seed)
    while min(took.values()) < seconds:
        rng.shuffle(order)
        for side in order:
            turn = side.turn()
            tokens[side.name] += turn.tokens
            took[side.name] += turn.seconds
            if (auto := side.engine.stats().auto) is not None:
                drafting[side.name].append((took[side.name], auto.drafting))
    return {name: Phase(tokens[name], took[name], drafting[name]) for name in tokens}


def settled_after(drafting: Sequence[tuple[float, bool]]) -> float:
    """Seconds of the last entry that differs from the final state; 0 if there is none.

    >>> settled_after([(0.1, True), (0.2, False), (0.3, True), (0.4, True)])
    0.2
    """
    last = drafting[-1][1]
    return max((seconds for seconds, drafts in drafting if drafts is not last), default=0.0)


class Row(NamedTuple):
    """The results of all phases with one load. Ratios are medians over the phases; `each_time` has all."""

    requests: int
    tokens_per_s: dict[str, float]
    auto_over_none: float
    fixed_over_none: float
    auto_over_better: float
    each_time: dict[str, list[float]]
    settled_after_s: list[float]
    drafting_in_the_end: list[bool]


def summary(requests: int, phases: Sequence[dict[str, Phase]]) -> Row:
    auto_over_none = [p["auto"].speed / p[str(NONE)].speed for p in phases]
    fixed_over_none = [p[str(FIXED)].speed / p[str(NONE)].speed for p in phases]
    auto, fixed = median(auto_over_none), median(fixed_over_none)
    return Row(
        requests=requests,
        tokens_per_s={name: median(p[name].speed for p in phases) for name in phases[0]},
        auto_over_none=auto,
        fixed_over_none=fixed,
        auto_over_better=auto / max(1.0, fixed),
        each_time={"auto_over_none": auto_over_none, "fixed_over_none": fixed_over_none},
        settled_after_s=[settled_after(p["auto"].drafting) for p in phases],
        drafting_in_the_end=[p["auto"].drafting[-1][1] for p in phases],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    add_engine_options(parser)
    parser.add_argument("--many", type=positive, default=64, help="requests at once (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=seconds, default=3.0, help="duration of a load (default: %(default)s)"
    )
    parser.add_argument(
        "--times", type=positive, default=10, help="turns of both loads (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.many < 2:
        parser.error("--many: it must be at least 2")
    config = EngineConfig(model_path=args.model_path, cpu_isa=args.cpu_isa, threads=args.threads)
    prompts = load_prompts(args.model_path)
    sides = sharing(config, (NONE, AUTO, FIXED), prompts)
    found: dict[int, list[dict[str, Phase]]] = {args.many: [], 1: []}
    for time in range(args.times):
        for n, phases in found.items():
            phases.append(run_phase(sides, n, time, args.seconds))
    rows = [summary(n, phases) for n, phases in found.items()]
    print("| requests | none, tok/s | 2 drafts | auto | of the better | settled after s, median | longest |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row.requests} | {row.tokens_per_s[str(NONE)]:.0f} | {row.fixed_over_none:.2f} "
            f"| {row.auto_over_none:.2f} | {row.auto_over_better:.3f} "
            f"| {median(row.settled_after_s):.2f} | {max(row.settled_after_s):.2f} |"
        )
    claim = check_claim(
        "auto over the better of no and two drafts",
        {f"{row.requests} requests": row.auto_over_better for row in rows},
    )
    startup = sides[0].engine.startup
    result = {
        "loads": [row._asdict() for row in rows], "claim": claim, "model": args.model_path,
        "seconds": args.seconds, "times": args.times, "cpu_isa": startup.get("cpu_isa"),
        "threads": startup["threads"],
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("load-by-turns", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
