"""Automatic depth against every fixed one, in turns so short that a busy neighbour slows all of them alike.

    python benchmarks/depths_in_turn.py [--concurrency 1,4,16,64] [--rounds 40] [--times 3] [--output FOLDER]
                                        [--cpu-isa avx2] [--threads 2]

An engine for each side, in one process, each with as many requests as the load has; where one ends, the next
begins. A turn is some 60 ms of steps; a round gives every side its turn, in changing order. Speed is tokens a
step, over all rounds, by the middle of what a step takes relative to its round. (`nextn bench compare`
measures over seconds, and some machines change their speed by half between two of its loads.) The first
quarter of the rounds is warm-up. Where an engine's memory happens to lie makes it faster or slower than its
like for life, so all of it can be done several times, with new engines. The last line is JSON.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, mean, median

from last_line import tell

from nextn.bench.prompts import heldout_prompts
from nextn.config import CPU_LEVELS, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.tokenizer.tokenizer import Tokenizer

DEPTHS = (0, 1, 2, 3, 4)
AUTO = -1
TURN = 0.06  # seconds
LENGTHS = (64, 192)  # tokens of a text
PROMPTS = 64


class Side:
    def __init__(
        self, config: EngineConfig, depth: int, prompts: Sequence[Sequence[int]], temperature: float
    ) -> None:
        self.name = "auto" if depth == AUTO else str(depth)
        self.prompts, self.temperature = prompts, temperature
        self.engine = Engine(replace(config, speculative_num_steps=depth))
        self.requests = 0
        self.live: set[str] = set()

    def load(self, concurrency: int) -> None:
        """A new load, the same for every side."""
        for rid in self.live:
            self.engine.abort(rid)
        self.live.clear()
        self.luck = random.Random(concurrency)
        self.concurrency = concurrency

    def turn(self) -> tuple[int, int, float]:
        """Tokens, steps and seconds of a turn."""
        tokens = steps = 0
        self.engine._ended = None  # the others' turns are no time of its own
        begin = time.perf_counter()
        while (seconds := time.perf_counter() - begin) < TURN:
            while len(self.live) < self.concurrency:
                self._add()
            for out in self.engine.step():
                tokens += len(out.tokens)
                if out.finish_reason is not None:
                    self.live.discard(out.rid)
            steps += 1
        return tokens, steps, seconds

    def _add(self) -> None:
        rid = str(self.requests)
        self.requests += 1
        self.live.add(rid)
        params = SamplingParams(
            max_tokens=self.luck.randint(*LENGTHS), temperature=self.temperature, ignore_eos=True,
            seed=self.luck.randrange(1 << 30),
        )  # fmt: skip
        self.engine.add(Request(rid, list(self.luck.choice(self.prompts)), params))


def measure(sides: Sequence[Side], concurrency: int, rounds: int) -> dict[str, float]:
    """Speed of each side, in units that all share."""
    for side in sides:
        side.load(concurrency)
    tokens = dict.fromkeys([s.name for s in sides], 0)
    steps = dict.fromkeys(tokens, 0)
    took: dict[str, list[float]] = {name: [] for name in tokens}
    for at in range(rounds):
        turns = {s.name: s.turn() for s in (sides if at % 2 else sides[::-1])}
        if at < rounds // 4:
            continue
        usual = mean(seconds / count for _, count, seconds in turns.values())
        for name, (made, count, seconds) in turns.items():
            tokens[name] += made
            steps[name] += count
            took[name].append(seconds / count / usual)
    return {name: tokens[name] / steps[name] / median(took[name]) for name in tokens}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="nextn-tiny", help="checkpoint folder (default: %(default)s)")
    parser.add_argument("--concurrency", default="1,2,4,8,16,32,64", help="requests at once")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each side (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--output", type=Path, help="folder for the result")
    parser.add_argument(
        "--cpu-isa", default="auto", choices=("auto", *CPU_LEVELS), help="of the native kernels"
    )
    parser.add_argument("--threads", type=int, help="of each engine (default: the cores it may use)")
    parser.add_argument("--times", type=int, default=1, help="with new engines each (default: %(default)s)")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    prompts = [tokenizer.encode(text)[:64] for text in heldout_prompts(PROMPTS)]
    loads = [int(n) for n in args.concurrency.split(",")]
    found: dict[int, list[dict[str, float]]] = {n: [] for n in loads}
    config = EngineConfig(model_path=args.model_path, cpu_isa=args.cpu_isa, threads=args.threads)
    for _ in range(args.times):
        sides = [Side(config, depth, prompts, args.temperature) for depth in (*DEPTHS, AUTO)]
        for n in loads:
            found[n].append(measure(sides, n, args.rounds))
    print("| requests | " + " | ".join(f"{d} drafts" for d in DEPTHS[1:]) + " | auto | of the best |")
    print("|--:|" + "--:|" * (len(DEPTHS) + 1))
    rows = []
    for n, times in found.items():
        over = {name: geometric_mean([t[name] / t["0"] for t in times]) for name in times[0]}
        best = max(over[str(d)] for d in DEPTHS)
        each = [t["auto"] / max(t[str(d)] for d in DEPTHS) for t in times]
        rows.append(
            {"requests": n, "over_none": over, "of_best_fixed": over["auto"] / best, "each_time": each}
        )
        cells = [f"{over[str(d)]:.2f}" for d in DEPTHS[1:]]
        cells += [f"{over['auto']:.2f}", f"{over['auto'] / best:.3f}"]
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)
    result = {
        "loads": rows, "model": args.model_path, "temperature": args.temperature, "rounds": args.rounds,
        "times": args.times, "cpu_isa": sides[0].engine.startup.get("cpu_isa"),
        "threads": sides[0].engine.startup["threads"],
    }  # fmt: skip
    tell("depths-in-turn", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
