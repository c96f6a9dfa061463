"""nextn against transformers, llama.cpp and vLLM: the same checkpoint, the same prompts, the same threads.

    benchmarks/peers/install.sh vllm                     # each peer once, see README.md
    python benchmarks/peers/run.py                       # the embedded model
    python benchmarks/peers/run.py --model DIR           # another, such as synthetic_checkpoint.py's
    python benchmarks/peers/run.py --quick --max-wait 0  # a trial, on a machine that is not idle

Measured: tokens/s of 512-token prompts, of one text at a time, of 8 and of 32 at once. Engines take turns,
medians count. The last line is JSON; --output FOLDER keeps it there as peers-<model>_<hardware>_<date>.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import signal
import sys
from pathlib import Path
from typing import Any

from cases import cases, code_prompts, random_prompts
from measure import measure
from report import file_name, report, rounded, table
from variants import OURS, Variant, default_variants, interpreter

from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED, model_folder, usable_cores
from nextn.families.config import ModelConfig
from nextn.tokenizer.tokenizer import Tokenizer

INSTALL = "benchmarks/peers/install.sh"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=EMBEDDED, help="checkpoint folder; default: the embedded model")
    parser.add_argument("--dir", type=Path, default=Path(".peers"), help=f"as given to {INSTALL}")
    parser.add_argument(
        "--engines", help="engine[:dtype][:mtpK],...; default: all, without and with --drafts"
    )
    parser.add_argument(
        "--drafts", type=int, default=2, help="MTP drafts a step where --engines says nothing"
    )
    parser.add_argument("--threads", type=int, default=min(2, usable_cores()))
    parser.add_argument("--rounds", type=int, help="turns of every engine; default 3, 1 if --quick")
    parser.add_argument("--prompts", choices=("code", "random"), help="default: code for the embedded model")
    parser.add_argument("--max-wait", type=float, default=600, help="seconds to wait for an idle machine")
    parser.add_argument("--quick", action="store_true", help="few tokens: to try it out")
    parser.add_argument("--output", type=Path, help="folder for the result, such as benchmarks/results")
    args = parser.parse_args(argv)
    for name, least in (("drafts", 1), ("threads", 1), ("rounds", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            parser.error(f"--{name} is {value}; it must be at least {least}")
    if args.threads > usable_cores():
        parser.error(f"--threads is {args.threads}; this machine has {usable_cores()} cores to use")
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.prompts = args.prompts or ("code" if args.model == EMBEDDED else "random")
    args.dir = args.dir.resolve()
    try:
        args.variants = (
            [Variant.parse(text) for text in args.engines.split(",")] if args.engines
            else default_variants(args.drafts)
        )  # fmt: skip
    except ValueError as e:
        parser.error(str(e))
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    folder = model_folder(args.model).resolve()
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer.from_folder(folder)
    variants = [v for v in args.variants if interpreter(v.engine, args.dir)]
    missing = {v.engine: f"{INSTALL} {v.engine}" for v in args.variants if v not in variants}
    # f32 without drafts is what every other variant's texts are held against.
    mine = [v for v in variants if v.engine == OURS]
    reference = min(mine, key=lambda v: (v.drafts, v.dtype != "float32"), default=Variant(OURS, "float32", 0))
    if args.prompts == "code":
        prompts = code_prompts(tokenizer)
    else:
        prompts = random_prompts(config.vocab_size, config.bos_token_id or 0, special=16)
    # The engines are process groups of their own: ended, not left behind, when this is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = datetime.datetime.now(datetime.timezone.utc)
    found = measure(
        variants, cases(prompts, args.quick), str(folder), args.dir, args.threads, args.rounds, args.max_wait,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    machine = this_machine()
    model = args.model if args.model == EMBEDDED else folder.name
    result: dict[str, Any] = {
        "benchmark": "peers",
        "model": model,
        "machine": dataclasses.asdict(machine),
        "threads": args.threads,
        "rounds": args.rounds,
        "quick": args.quick,
        "prompts": args.prompts,
        "date": begin.date().isoformat(),
        **report(found, reference, frozenset(config.eos_token_ids)),
        "missing": missing,
    }
    print("\n".join([f"{model} on {machine.cpu}, {args.threads} threads, tokens/s", *table(result), ""]))
    line = json.dumps(rounded(result))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / file_name(model, machine, result["date"])).write_text(line + "\n", encoding="utf-8")
    print(line)
    return 1 if any(f.error for f in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
