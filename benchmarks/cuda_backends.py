"""Compares plain torch with the Triton kernels on a CUDA device, without and with drafts.

    python benchmarks/cuda_backends.py [--requests 1,16,64] [--rounds 3] [--output benchmarks/results]
    python benchmarks/cuda_backends.py --model-path DIR --backends triton --drafts 0,3

Each side has its own engine, all in one process. A load is greedy completions of held-out code; all requests
arrive at the start, as in `nextn bench offline`. Every side runs a load once to warm up, and then all sides
take turns for `rounds` rounds. A side's result is its median. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import torch
from last_line import tell

from nextn.bench.machine import slug
from nextn.bench.offline import generate
from nextn.bench.progress import Progress
from nextn.bench.prompts import heldout_prompts
from nextn.config import EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.tokenizer.tokenizer import Tokenizer

PROMPT, OUTPUT = 100, 64  # tokens of each request: at most of the prompt, exactly of the output
Side = tuple[str, int]  # backend, drafts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="nextn-tiny", help="checkpoint folder (default: %(default)s)")
    parser.add_argument("--backends", default="reference,triton", help="default: %(default)s")
    parser.add_argument("--drafts", default="0,2", help="default: %(default)s")
    parser.add_argument("--requests", default="1,16,64", help="concurrent requests (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    counts = [int(n) for n in args.requests.split(",")]
    prompts = [tokenizer.encode(text)[:PROMPT] for text in heldout_prompts(max(counts))]
    sides = [(backend, int(n)) for backend in args.backends.split(",") for n in args.drafts.split(",")]
    engines = {side: Engine(_config(args.model_path, *side)) for side in sides}

    def speed(side: Side, count: int) -> float:
        """Output tokens per second."""
        run = generate(engines[side], prompts[:count], [OUTPUT] * count, True, Progress(count, False))
        return run.per_second(run.output_tokens)

    print("| requests | " + " | ".join(_name(side) for side in sides) + " |")
    print("|--:" * (len(sides) + 1) + "|")
    loads = []
    for count in counts:
        for side in sides:
            speed(side, count)
        rounds = [{side: speed(side, count) for side in sides} for _ in range(args.rounds)]
        tokens = {side: median(found[side] for found in rounds) for side in sides}
        first = tokens[sides[0]]
        over = {side: median(found[side] / found[sides[0]] for found in rounds) for side in sides}
        cells = [f"{first:,.0f}", *(f"{tokens[side]:,.0f} ({over[side]:.2f}x)" for side in sides[1:])]
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)
        loads.append(
            {
                "requests": count,
                "tokens_per_second": {_name(side): tokens[side] for side in sides},
                "over_the_first": {_name(side): over[side] for side in sides},
            }
        )
    model_name = Path(args.model_path).name
    result = {
        "loads": loads,
        "model": model_name,
        "dtypes": {_name(side): engines[side].startup["dtype"] for side in sides},
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rounds": args.rounds,
    }
    tell(f"cuda-backends_{slug(torch.cuda.get_device_name())}_{slug(model_name)}", result, args.output)
    return 0


def _config(model: str, backend: str, drafts: int) -> EngineConfig:
    return EngineConfig(
        model_path=model, device="cuda", kernel_backend=backend, kv_cache_tokens=65536,
        speculative_num_steps=drafts, disable_radix_cache=True,
    )  # fmt: skip


def _name(side: Side) -> str:
    return f"{side[0]}, {side[1]} drafts" if side[1] else f"{side[0]}"


if __name__ == "__main__":
    sys.exit(main())
