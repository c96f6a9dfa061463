"""Measures n-gram drafts, the MTP layer's drafts, and both together, on repetitive and on plain texts.

python benchmarks/ngram.py                      # the embedded model
python benchmarks/ngram.py --model-path DIR --max-tokens 256 --output benchmarks/results

Requests are greedy, one at a time; the sides take turns and must all give the same token ids. A "repetitive"
prompt is the beginning of a held-out file three times, which the model then continues; a "plain" prompt is
the same beginning once. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from last_line import tell

from nextn import LLM, SamplingParams
from nextn.bench.machine import this_machine
from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED

SIDES: dict[str, dict[str, Any]] = {
    "no drafts": {"speculative_num_steps": 0},
    "MTP": {},
    "n-grams": {"speculative_algorithm": "NGRAM"},
    "both": {"speculative_algorithm": "NEXTN+NGRAM"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--drafts", type=int, default=2, help="drafts per step (default: 2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    common = {"disable_radix_cache": True, "speculative_num_steps": args.drafts}
    sides = {name: LLM(args.model_path, **common | own) for name, own in SIDES.items()}
    tokenizer = next(iter(sides.values())).tokenizer
    heads = [tokenizer.encode(text)[:100] for text in heldout_prompts(args.prompts)]
    results: dict[str, Any] = {}
    print(f"{'text':12} {'drafts':10} {'tok/s':>8} {'ratio':>6} {'accept length':>14}")
    for text, prompts in (("repetitive", [head * 3 for head in heads]), ("plain", heads)):
        results[text] = measure(sides, prompts, args.max_tokens, args.rounds)
        base = results[text]["no drafts"]["tokens_per_second"]
        for name, f in results[text].items():
            f["ratio"] = round(f["tokens_per_second"] / base, 3)
            rate, length = f["tokens_per_second"], f["accept_length"]
            print(f"{text:12} {name:10} {rate:8.1f} {f['ratio']:5.2f}x {length:14.2f}")
    result = {
        "model": args.model_path, "prompts": args.prompts, "max_tokens": args.max_tokens,
        "drafts": args.drafts, "rounds": args.rounds, "machine": dataclasses.asdict(this_machine()),
        "date": str(datetime.date.today()), "texts": results,
    }  # fmt: skip
    tell(f"ngram-{args.drafts}-drafts", result, args.output)
    return 0


def measure(
    sides: dict[str, LLM], prompts: list[list[int]], max_tokens: int, rounds: int
) -> dict[str, dict[str, float]]:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    lengths: dict[str, float] = {}
    expected: list[list[int]] | None = None
    for _ in range(rounds + 1):  # the first round is warm-up
        for name, llm in sides.items():
            begin = time.perf_counter()
            done = [llm.generate([prompt], params)[0] for prompt in prompts]
            rates[name].append(len(prompts) * max_tokens / (time.perf_counter() - begin))
            lengths[name] = statistics.mean(d.spec.accept_length for d in done)
            texts = [d.token_ids for d in done]
            expected = expected or texts
            assert texts == expected, f"{name} gives other texts"
    return {
        name: {
            "tokens_per_second": round(statistics.median(rates[name][1:]), 1),
            "accept_length": round(lengths[name], 3),
        }
        for name in sides
    }


if __name__ == "__main__":
    sys.exit(main())
