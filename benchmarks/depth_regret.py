"""Automatic draft length on simulated machines and texts, against policies that know what it has to learn.

    python benchmarks/depth_regret.py [--tokens 4000] [--seeds 3] [--output benchmarks/results]

First executors whose drafts are as deep as the controller says, then such that gate drafts guess by guess
(depth_simulation.py, gate_simulation.py). What is told is tokens/s over those of the oracle, which in each
step takes the best depth (the same for all requests) by trying all of them; then over the best fixed depth
of 0 to 4, and over no drafts. Where drafts are gated there is no oracle, and each case is run several
times, with a cost table that is wrong in another way: the worst of these runs, and their mean. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from depth_simulation import MACHINES, TEXTS, DepthSimulation, Machine, run_auto, run_fixed
from gate_simulation import GATED_MACHINES, GATED_TEXTS, GatedSimulation, fixed_rate
from last_line import tell

CONCURRENCY = (1, 4, 16, 64)
WARM_UP = 1000  # tokens of each request
FIXED = range(5)
HEADER = "| machine | text | requests | best fixed | drafts | of the oracle | of the best fixed | of none |"
GATED_HEADER = (
    "| machine | text | requests | best fixed | drafts | of the best fixed | mean | of none | mean |"
)
Case = dict[str, str | int | float]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--tokens", type=int, default=4000, help=f"of each request, the warm-up's {WARM_UP} included"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each gated case")
    parser.add_argument("--concurrency", default=",".join(map(str, CONCURRENCY)))
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    many = [int(n) for n in args.concurrency.split(",")]

    print(HEADER)
    print("|:--|:--|--:|--:|--:|--:|--:|--:|")
    cases = []
    for machine in MACHINES.values():
        for text in TEXTS:
            for n in many:
                cases.append(compare(machine, text, n, args.tokens))
                show(cases[-1])

    print(f"\nGated, {args.seeds} runs of each: the worst, and the mean\n\n{GATED_HEADER}")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|--:|")
    gated = []
    for machine in GATED_MACHINES.values():
        for text in GATED_TEXTS:
            for n in many:
                gated.append(compare_gated(machine, text, n, args.tokens, args.seeds))
                show(gated[-1])

    result = {
        "worst": worst(cases, ("of_oracle", "of_best_fixed", "of_none")),
        "cases": cases,
        "gated": {"worst": worst(gated, ("of_best_fixed", "of_none")), "cases": gated, "seeds": args.seeds},
        "tokens": args.tokens,
    }
    tell("depth-regret", result, args.output)
    return 0


def compare(machine: Machine, text: str, n: int, tokens: int) -> Case:
    def sim() -> DepthSimulation:
        return DepthSimulation(machine, TEXTS[text], n, seed=n)

    auto = run_auto(sim(), WARM_UP, tokens)
    fixed = [run_fixed(sim(), WARM_UP, tokens, d).rate for d in FIXED]
    oracle = run_fixed(sim(), WARM_UP, tokens, None).rate
    return {
        "machine": machine.name,
        "text": text,
        "requests": n,
        "best_fixed": max(FIXED, key=lambda d: fixed[d]),
        "drafts": round(auto.proposed / auto.steps / n, 3),
        "of_oracle": round(auto.rate / oracle, 4),
        "of_best_fixed": round(auto.rate / max(fixed), 4),
        "of_none": round(auto.rate / fixed[0], 4),
    }


def compare_gated(machine: Machine, text: str, n: int, tokens: int, seeds: int) -> Case:
    drawn = GATED_TEXTS[text]
    fixed = [fixed_rate(machine, drawn, n, d) for d in FIXED]
    autos = [run_auto(GatedSimulation(machine, drawn, n, seed), WARM_UP, tokens) for seed in range(seeds)]
    rates = [auto.rate for auto in autos]
    return {
        "machine": machine.name,
        "text": text,
        "requests": n,
        "best_fixed": max(FIXED, key=lambda d: fixed[d]),
        "drafts": round(fmean(auto.proposed / auto.steps for auto in autos) / n, 3),
        "of_best_fixed": round(min(rates) / max(fixed), 4),
        "of_best_fixed_mean": round(fmean(rates) / max(fixed), 4),
        "of_none": round(min(rates) / fixed[0], 4),
        "of_none_mean": round(fmean(rates) / fixed[0], 4),
    }


def show(case: Case) -> None:
    cells = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in case.values()]
    print(f"| {' | '.join(cells)} |", flush=True)


def worst(cases: Sequence[Case], keys: Sequence[str]) -> dict[str, float]:
    return {key: min(float(case[key]) for case in cases) for key in keys}


if __name__ == "__main__":
    sys.exit(main())
