"""Measures how many drafts each verify mode accepts, by temperature, on held-out Python sources.

    python benchmarks/verify_modes.py [--depths 1,2,3] [--temperatures 1.0,0.7] [--output benchmarks/results]

Each depth has its own engine. Every mode has the same prompts and seeds. `typical` drafts the likeliest
token; with thresholds of 1 it is lossless, with lower ones lossy. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
from pathlib import Path

from last_line import tell

from nextn.bench.machine import this_machine
from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED
from nextn.llm import LLM
from nextn.request import SamplingParams, SpeculativeParams
from nextn.stats import SpecStats

MODES = {
    "exact": SpeculativeParams(verify="exact"),
    "rejection": SpeculativeParams(verify="rejection"),
    "block": SpeculativeParams(verify="block"),
    "typical": SpeculativeParams(verify="typical"),
    "typical, 0.5 and 0.5, lossy": SpeculativeParams(
        verify="typical", accept_threshold_single=0.5, accept_threshold_acc=0.5
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--depths", default="1,2,3")
    parser.add_argument("--temperatures", default="1.0,0.7")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    prompts = heldout_prompts(args.prompts)
    rows = []
    print("| T | drafts | verify | accept length | drafts accepted, by depth |")
    print("|---|---|---|---|---|")
    for num_steps in map(int, args.depths.split(",")):
        llm = LLM(args.model_path, speculative_num_steps=num_steps)
        for temperature in map(float, args.temperatures.split(",")):
            for name, mode in MODES.items():
                spec = measure(llm, prompts, temperature, args.max_tokens, mode)
                rates = [round(rate, 3) for rate in spec.accept_rates]
                rows.append(
                    {"temperature": temperature, "drafts": num_steps, "verify": name, "lossy": spec.lossy,
                     "accept_length": round(spec.accept_length, 3), "accept_rates": rates,
                     "verify_steps": spec.verify_steps}
                )  # fmt: skip
                shown = " ".join(f"{rate:.0%}" for rate in rates)
                length = f"{spec.accept_length:.2f}"
                print(f"| {temperature:g} | {num_steps} | {name} | {length} | {shown} |", flush=True)
    machine = this_machine()
    result = {
        "model": args.model_path, "prompts": args.prompts, "max_tokens": args.max_tokens,
        "machine": dataclasses.asdict(machine), "date": str(datetime.date.today()), "rows": rows,
    }  # fmt: skip
    tell("verify-modes", result, args.output)
    return 0


def measure(
    llm: LLM, prompts: list[str], temperature: float, max_tokens: int, mode: SpeculativeParams
) -> SpecStats:
    """Completes all prompts at once and returns the speculation's counts."""
    params = [
        SamplingParams(
            max_tokens=max_tokens, temperature=temperature, seed=i, ignore_eos=True, speculative=mode
        )
        for i in range(len(prompts))
    ]
    spec = SpecStats()
    for completion in llm.generate(prompts, params):
        spec.merge(completion.spec)
    return spec


if __name__ == "__main__":
    sys.exit(main())
