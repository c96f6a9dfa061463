"""Automatic draft length against an oracle that knows the acceptance rates, on simulated machines and texts.

    python benchmarks/depth_regret.py [--tokens 6000] [--output benchmarks/results]

auto: tokens/s over those of the oracle, which in each step takes the best depth (the same for all requests)
by trying all of them; then over the best fixed depth of 0 to 4, and over no drafts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from depth_simulation import MACHINES, TEXTS, Machine, Simulation, run_auto, run_fixed
from last_line import tell

CONCURRENCY = (1, 4, 16, 64)
SPREAD = 0.5  # of drafts' own probabilities around the text's rate, where they differ
HEADER = "| machine | text | requests | best fixed | drafts | of the oracle | of the best fixed | of none |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--tokens", type=int, default=6000, help="of each request, the warm-up's 1000 included"
    )
    parser.add_argument("--concurrency", default=",".join(map(str, CONCURRENCY)))
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    print(HEADER)
    print("|:--|:--|--:|--:|--:|--:|--:|--:|")
    rows = []
    for machine in MACHINES.values():
        for text in (*TEXTS, "medium, confidence told"):
            for n in map(int, args.concurrency.split(",")):
                rows.append(compare(machine, text, n, args.tokens))
                r = rows[-1]
                print(
                    f"| {r['machine']} | {r['text']} | {n} | {r['best_fixed']} | {r['drafts']:.2f} "
                    f"| {r['of_oracle']:.3f} | {r['of_best_fixed']:.3f} | {r['of_none']:.3f} |",
                    flush=True,
                )
    worst = {key: min(r[key] for r in rows) for key in ("of_oracle", "of_best_fixed", "of_none")}
    result = {"worst": worst, "cases": rows, "tokens": args.tokens}
    tell("depth-regret", result, args.output)
    return 0


def compare(
    machine: Machine, text: str, n: int, tokens: int, warm_up: int = 1000
) -> dict[str, str | int | float]:
    spread = SPREAD if text.endswith("told") else 0.0
    rates = TEXTS[text.split(", confidence")[0]]

    def sim() -> Simulation:
        return Simulation(machine, rates, n, seed=n, spread=spread)

    auto = run_auto(sim(), warm_up, tokens)
    fixed = [run_fixed(sim(), warm_up, tokens, d).rate for d in range(5)]
    oracle = run_fixed(sim(), warm_up, tokens, None).rate
    return {
        "machine": machine.name,
        "text": text,
        "requests": n,
        "best_fixed": max(range(5), key=lambda d: fixed[d]),
        "drafts": round(auto.proposed / auto.steps / n, 3),
        "of_oracle": round(auto.rate / oracle, 4),
        "of_best_fixed": round(auto.rate / max(fixed), 4),
        "of_none": round(auto.rate / fixed[0], 4),
    }


if __name__ == "__main__":
    sys.exit(main())
