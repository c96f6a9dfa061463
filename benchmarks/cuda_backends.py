"""Plain torch against the Triton kernels on a CUDA device, without drafts and with two, side by side.

    python benchmarks/cuda_backends.py [--requests 1,16,64] [--rounds 3] [--output benchmarks/results]

An engine for each side, in one process; every load is greedy completions of held-out code, all requests there
from the beginning, as in `nextn bench offline`. A load is run once to warm up, then `rounds` times by every
side in turn; a side's figure is the middle one. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import torch
from last_line import tell

from nextn.bench.offline import generate
from nextn.bench.progress import Progress
from nextn.bench.prompts import heldout_prompts
from nextn.config import EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.tokenizer.tokenizer import Tokenizer

BACKENDS = ("reference", "triton")
DRAFTS = (0, 2)
PROMPT, OUTPUT = 100, 64  # tokens of each request, at most and exactly


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default="nextn-tiny", help="checkpoint folder (default: %(default)s)")
    parser.add_argument("--requests", default="1,16,64", help="at once (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    counts = [int(n) for n in args.requests.split(",")]
    prompts = [tokenizer.encode(text)[:PROMPT] for text in heldout_prompts(max(counts))]
    engines = {
        (backend, drafts): Engine(
            EngineConfig(
                model_path=args.model_path, device="cuda", kernel_backend=backend, kv_cache_tokens=65536,
                speculative_num_steps=drafts, disable_radix_cache=True,
            )
        )
        for backend in BACKENDS
        for drafts in DRAFTS
    }  # fmt: skip

    def speed(engine: Engine, count: int) -> float:
        """Output tokens a second."""
        run = generate(engine, prompts[:count], [OUTPUT] * count, True, Progress(count, False))
        return run.per_second(run.output_tokens)

    print("| requests | plain torch | 2 drafts | Triton | 2 drafts | Triton over torch | drafts over none |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    loads = []
    for count in counts:
        for engine in engines.values():
            speed(engine, count)
        rounds = [
            {side: speed(engine, count) for side, engine in engines.items()} for _ in range(args.rounds)
        ]
        tokens = {side: median(found[side] for found in rounds) for side in engines}
        over_torch = tokens["triton", 0] / tokens["reference", 0]
        over_none = tokens["triton", 2] / tokens["triton", 0]
        cells = [f"{tokens[side]:,.0f}" for side in engines]
        print(f"| {count} | " + " | ".join(cells) + f" | {over_torch:.1f}x | {over_none:.2f}x |", flush=True)
        named = {f"{backend}, {drafts} drafts": speed for (backend, drafts), speed in tokens.items()}
        loads.append({"requests": count, "tokens_per_second": named})
    result = {
        "loads": loads,
        "model": args.model_path,
        "dtypes": {backend: engines[backend, 0].startup["dtype"] for backend in BACKENDS},
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rounds": args.rounds,
    }
    tell("cuda-backends", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
