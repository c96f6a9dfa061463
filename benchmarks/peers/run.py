"""Compares nextn with transformers, llama.cpp and vLLM on the same checkpoint, prompts and threads.

    benchmarks/peers/install.sh vllm                     # each peer once, see README.md
    python benchmarks/peers/run.py                       # the embedded model
    python benchmarks/peers/run.py --model DIR           # another, for example synthetic_checkpoint.py's
    python benchmarks/peers/run.py --gguf FILE           # nextn and llama.cpp on one GGUF file
    python benchmarks/peers/run.py --quick --max-wait 0  # a trial, on a machine that is not idle

It measures tokens/s of prompts of 512 and of 2,048 tokens, and of decoding 1, 8 and 32 texts at once. Engines
take turns, and medians count. The last line is JSON; --output FOLDER writes it to
peers-<model>_<hardware>_<date>.json.
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

from cases import Case, cases, code_prompts, random_prompts
from limits import folder_bytes, gguf_bytes, gguf_facts, gguf_formats, limits, read_bandwidth
from measure import measure
from report import CASES, file_name, read_shares, report, rounded, table
from variants import GGUF, OURS, Variant, default_variants, interpreter

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
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="a GGUF file in place of --model")
    parser.add_argument("--dir", type=Path, default=Path(".peers"), help=f"as given to {INSTALL}")
    parser.add_argument(
        "--engines", help="engine[:dtype][:mtpK],...; default: all, without and with --drafts"
    )
    parser.add_argument(
        "--drafts", type=int, default=2, help="MTP drafts a step where --engines says nothing"
    )
    parser.add_argument("--threads", type=int, default=min(2, usable_cores()))
    parser.add_argument("--cases", help=f"some of {','.join(CASES)}; default: all")
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
    args.dir = args.dir.resolve()
    args.cases = args.cases.split(",") if args.cases else list(CASES)
    unknown = sorted(set(args.cases) - set(CASES))
    if unknown:
        parser.error(f"--cases has {', '.join(unknown)}; choose from {', '.join(CASES)}")
    if args.gguf is None and args.model.endswith(".gguf"):
        args.gguf = Path(args.model)
    if args.gguf is not None:
        args.gguf = args.gguf.resolve()
        args.model = str(args.gguf)
        if not args.gguf.is_file():
            parser.error(f"--gguf {args.gguf}: there is no such file")
        if args.prompts == "code":
            parser.error("--prompts code needs a checkpoint folder's tokenizer; a GGUF file gets random ones")
        if interpreter("llamacpp", args.dir) is None:
            parser.error(f"--gguf needs llama.cpp, which also says what the file holds: {INSTALL} llamacpp")
    args.prompts = args.prompts or ("code" if args.model == EMBEDDED else "random")
    gguf = args.gguf is not None
    try:
        args.variants = (
            [Variant.parse(text, gguf) for text in args.engines.split(",")] if args.engines
            else default_variants(args.drafts, gguf)
        )  # fmt: skip
    except ValueError as e:
        parser.error(str(e))
    return args


@dataclasses.dataclass(frozen=True)
class Model:
    """The model that the engines run, and facts about it. needed: bytes that a token must read, by number
    format. formats: bytes of a GGUF file in each number format."""

    path: Path
    name: str
    vocab_size: int
    bos: int
    ends: frozenset[int]
    context: int
    needed: dict[str, int]
    formats: dict[str, int] | None = None


def model_of(args: argparse.Namespace) -> Model:
    """Reads the facts about the model. Raises ValueError if a file cannot be read."""
    if args.gguf is None:
        folder = model_folder(args.model).resolve()
        cfg = ModelConfig.from_folder(folder)
        return Model(
            folder, args.model if args.model == EMBEDDED else folder.name, cfg.vocab_size,
            cfg.bos_token_id or 0, frozenset(cfg.eos_token_ids), cfg.max_position_embeddings,
            folder_bytes(cfg),
        )  # fmt: skip
    python = interpreter("llamacpp", args.dir)
    assert python is not None
    facts = gguf_facts(python, args.dir / "llamacpp" / "llama.cpp", args.gguf)
    return Model(
        args.gguf, args.gguf.stem, facts["vocab_size"], facts["bos"] or 0, frozenset(facts["ends"]),
        facts["context"], {GGUF: gguf_bytes(facts)}, gguf_formats(facts),
    )  # fmt: skip


def chosen_cases(args: argparse.Namespace, model: Model) -> list[Case]:
    if args.prompts == "code":
        prompts = code_prompts(Tokenizer.from_folder(model_folder(args.model)))
    else:
        prompts = random_prompts(model.vocab_size, model.bos, special=16)
    return [case for case in cases(prompts, args.quick, model.context) if case.name in args.cases]


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        model = model_of(args)
    except ValueError as e:
        print(e, file=sys.stderr)
        return 2
    work = chosen_cases(args, model)
    variants = [v for v in args.variants if interpreter(v.engine, args.dir)]
    missing = {v.engine: f"{INSTALL} {v.engine}" for v in args.variants if v not in variants}
    # All other variants' texts are compared with this variant's: f32 (or the GGUF file's formats), no drafts.
    mine = [v for v in variants if v.engine == OURS]
    usual = default_variants(args.drafts, args.gguf is not None)[0]
    reference = min(mine, key=lambda v: (v.drafts, v.dtype != "float32"), default=usual)
    # Each engine is its own process group. On SIGTERM, exit in a way that ends them too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = datetime.datetime.now(datetime.timezone.utc)
    bandwidth = read_bandwidth(args.threads)
    found = measure(
        variants, work, str(model.path), args.dir, args.threads, args.rounds, args.max_wait,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    machine, most = this_machine(), limits(bandwidth, model.needed)
    result: dict[str, Any] = {
        "benchmark": "peers",
        "model": model.name,
        "formats": model.formats,
        "machine": dataclasses.asdict(machine),
        "threads": args.threads,
        "rounds": args.rounds,
        "quick": args.quick,
        "prompts": args.prompts,
        "date": begin.date().isoformat(),
        "cases": [case.name for case in work],
        "limits": {**most, "shares": read_shares(found, most["tok_s"])},
        **report(found, reference, model.ends),
        "missing": missing,
    }
    print("\n".join([f"{model.name} on {machine.cpu}, {args.threads} threads, tokens/s", *table(result), ""]))
    line = json.dumps(rounded(result))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / file_name(model.name, machine, result["date"])).write_text(
            line + "\n", encoding="utf-8"
        )
    print(line)
    return 1 if any(f.error for f in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
