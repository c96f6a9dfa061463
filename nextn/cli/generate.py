r"""nextn generate: completes prompts in-process, without a server.

nextn generate $'def read_lines(path):\n' --max-tokens 64
nextn generate "import os" --model /models/deepseek-v3
echo "import os" | nextn generate -
"""

from __future__ import annotations

import argparse
import sys
import time

from nextn.cli.errors import CommandError
from nextn.cli.options import add_options, parse
from nextn.config import EngineConfig

HELP = "complete prompts in-process and print the text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", help="prompts (not the model); - reads one from standard input")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--max-tokens", type=int, default=128, help="maximum tokens to generate (default: 128)"
    )
    sampling.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    sampling.add_argument(
        "--top-p", type=float, default=1.0, help="nucleus sampling; 1: all tokens (default: 1)"
    )
    sampling.add_argument(
        "--top-k", type=int, default=-1, help="sample from the k most likely tokens; -1: all (default: -1)"
    )
    sampling.add_argument("--sampling-seed", type=int, default=0, help="seed of the sampling (default: 0)")
    sampling.add_argument("--stop", action="append", default=[], help="stop string; may be repeated")
    add_options(parser, EngineConfig)


def run(args: argparse.Namespace) -> int:
    config = parse(args, EngineConfig)
    prompts = [sys.stdin.read() if p == "-" else p for p in args.prompt]
    import dataclasses

    from nextn.bench.console import harmless
    from nextn.llm import LLM
    from nextn.request import SamplingParams

    options = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    try:
        llm = LLM(options.pop("model_path"), **options)
        params = SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.sampling_seed,
        )
        begin = time.perf_counter()
        done = llm.generate(prompts, params, args.stop)
    except ValueError as e:
        raise CommandError(str(e)) from e
    seconds = time.perf_counter() - begin
    for prompt, one in zip(prompts, done, strict=True):
        text = prompt + one.text
        print(harmless(text) if sys.stdout.isatty() else text)
    tokens = sum(len(one.token_ids) for one in done)
    spec = llm.engine.stats().spec
    rates = ", ".join(f"{r:.2f}" for r in spec.accept_rates) or "no drafts"
    print(
        f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tok/s, "
        f"accept length {spec.accept_length:.2f} ({rates})",
        file=sys.stderr,
    )
    return 0
