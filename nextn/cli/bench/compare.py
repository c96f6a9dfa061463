"""nextn bench compare: measures several servers under the same loads, in turns, and compares every text.

nextn bench compare                                          # MTP off against 1, 2, 3, 4 drafts, real code
nextn bench compare --num-steps 0,2 --scenario random generation --scale 0.1 --concurrency 1,4,16
nextn bench compare --side off="--speculative-num-steps 0" --base-url-side vllm=vllm+http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from nextn.cli.bench.arguments import not_negative
from nextn.cli.demo import positive
from nextn.cli.errors import CommandError
from nextn.config import EMBEDDED

HELP = "compare the speed and the texts of servers or configurations under the same loads, in turns"
# The same as in nextn.bench.dev.sweep, which takes too long to import for --help. A test compares them.
SCENARIOS = ("code", "random", "sharegpt", "translation", "generation", "summarization")
TEXTS = ("real", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sides(parser.add_argument_group("sides", "Ratios are relative to the first side. All servers run at "
                                        "once; while a server waits, it only uses memory."))  # fmt: skip
    add_loads(parser.add_argument_group("loads"))
    add_output(parser.add_argument_group("output"))
    parser.add_argument(
        "server_options", nargs="*", metavar="-- OPTION",
        help="after --: options of `nextn serve`, for every server that is started",
    )  # fmt: skip


def add_sides(group: Any) -> None:
    group.add_argument(
        "--num-steps", dest="sides", action="append", type=lambda text: ("steps", text), metavar="N,N,...",
        help="a server for each number of drafts; 0 is without MTP (default: 0,1,2,3,4)",
    )  # fmt: skip
    group.add_argument(
        "--side", dest="sides", action="append", type=lambda text: ("side", text), metavar='NAME="OPTIONS"',
        help="a server with these options of `nextn serve`; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--base-url-side", dest="sides", action="append", type=lambda text: ("url", text),
        metavar="NAME=[BACKEND+]URL",
        help="a running server of this or another engine; BACKEND as in bench serve (default: nextn)",
    )  # fmt: skip
    group.add_argument(
        "--model-path", "--model", default=EMBEDDED, metavar="DIR",
        help=f"checkpoint folder for servers that are started (default: {EMBEDDED}); a side may name another",
    )  # fmt: skip
    group.add_argument(
        "--tokenizer", metavar="DIR", help="folder with tokenizer.json (default: the first side's)"
    )


def add_loads(group: Any) -> None:
    group.add_argument(
        "--scenario", nargs="+", choices=SCENARIOS, default=["code"], metavar="NAME",
        help=f"{', '.join(SCENARIOS)} (default: code, the held-out Python prompts as they are)",
    )  # fmt: skip
    group.add_argument(
        "--scale", type=float, default=1.0, metavar="S",
        help="multiply the scenarios' lengths (default: 1); code is not scaled",
    )  # fmt: skip
    group.add_argument(
        "--text", choices=TEXTS, default="real",
        help="text of the prompts; real (default): held-out Python, joined; random: random token ids",
    )  # fmt: skip
    group.add_argument(
        "--dataset-path", type=Path, metavar="FILE", help="ShareGPT's JSON, for the scenario sharegpt"
    )
    group.add_argument(
        "--output-len", type=positive, default=128, metavar="N", help="output tokens of code (default: 128)"
    )
    load = group.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=lambda text: numbers(text, int), metavar="N,N,...",
        help="requests at once (default: 1,4,16)",
    )  # fmt: skip
    load.add_argument(
        "--request-rate", type=lambda text: numbers(text, float), metavar="R,R,...",
        help="requests/s, Poisson arrivals, instead of --concurrency",
    )  # fmt: skip
    group.add_argument(
        "--num-prompts", type=positive, metavar="N",
        help="prompts at each load (default: twice the concurrency, or ten seconds of a rate; at least 8)",
    )  # fmt: skip
    group.add_argument(
        "--rounds", type=positive, default=3, metavar="R",
        help="turns of each side at each load; medians are reported (default: 3)",
    )  # fmt: skip
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="T",
        help="0 is greedy (default); above 0, every request has its own seed",
    )  # fmt: skip
    group.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS",
        help="a request without an answer for this long has failed (default: 3600)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=not_negative, default=1, metavar="N",
        help="seed of arrivals, of random token ids and of the order of prompts from a file (default: 1)",
    )  # fmt: skip


def add_output(group: Any) -> None:
    group.add_argument(
        "--output-dir", type=Path, default=Path("nextn-compare"), metavar="DIR",
        help="results.json, table.md, report.html, plots and the servers' logs (default: nextn-compare)",
    )  # fmt: skip
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress bar, even in a terminal")


def run(args: argparse.Namespace) -> int:
    from nextn.bench.dev.sweep.run import run_compare
    from nextn.bench.errors import BenchError

    try:
        return run_compare(settings_of(args))
    except BenchError as e:
        raise CommandError(str(e), 1) from e
    except (ValueError, OSError) as e:
        raise CommandError(str(e)) from e


def settings_of(args: argparse.Namespace) -> Any:
    """Returns a nextn.bench.dev.sweep.settings.Settings. Raises ValueError."""
    from nextn.bench.console import styled
    from nextn.bench.dev.sweep.plan import make_levels
    from nextn.bench.dev.sweep.scenarios import make_scenario
    from nextn.bench.dev.sweep.settings import Settings
    from nextn.bench.dev.sweep.sides import num_steps_sides, option_side, url_side

    makers: dict[str, Any] = {
        "steps": num_steps_sides, "side": lambda t: [option_side(t)], "url": lambda t: [url_side(t)]
    }  # fmt: skip
    if args.dataset_path is not None and "sharegpt" not in args.scenario:
        raise ValueError("--dataset-path is for --scenario sharegpt; leave it out")
    concurrencies = args.concurrency or ([] if args.request_rate else [1, 4, 16])
    return Settings(
        sides=[side for kind, text in args.sides or [("steps", "0,1,2,3,4")] for side in makers[kind](text)],
        scenarios=[
            make_scenario(name, args.scale, args.text, args.output_len, args.dataset_path)
            for name in args.scenario
        ],
        levels=make_levels(concurrencies, args.request_rate or [], args.num_prompts),
        output_dir=args.output_dir,
        model_path=args.model_path,
        common_options=args.server_options,
        rounds=args.rounds,
        temperature=args.temperature,
        seed=args.seed,
        tokenizer=args.tokenizer,
        api_key=os.environ.get("OPENAI_API_KEY"),
        silence=args.timeout,
        bar=styled(sys.stderr) and not args.disable_tqdm,
    )


def numbers(text: str, kind: type[int] | type[float]) -> list[Any]:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: it must be a list such as 1,4,16") from None
