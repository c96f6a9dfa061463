"""nextn bench offline: measures the engine in-process and reports like bench_offline_throughput.

nextn bench offline                                          # 64 prompts of held-out code, the embedded model
nextn bench offline --num-prompts 256 --output-len 64 --speculative-num-steps 0
nextn bench offline --model-path DIR --dataset-name random --random-input-len 512 --random-output-len 128
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nextn.cli.bench.arguments import add_dataset, dataset_of
from nextn.cli.demo import positive
from nextn.cli.errors import CommandError
from nextn.cli.options import UNSET, add_options, parse
from nextn.config import EngineConfig

HELP = "run a load on the engine in-process and report throughput and acceptance"
SEED = 1  # of prompts and lengths, as in bench serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser.add_argument_group("dataset"))
    group = parser.add_argument_group("run")
    group.add_argument("--disable-ignore-eos", action="store_true", help="let an end token end a completion")
    group.add_argument(
        "--skip-warmup", action="store_true", help="run no warm-up: measure from the first step on"
    )
    group.add_argument("--output-file", type=Path, metavar="FILE", help="JSONL file that gets one more line")
    group.add_argument(
        "--profile-dir",
        type=Path,
        metavar="DIR",
        help="folder for a trace: where the time of steps goes",
    )
    group.add_argument(
        "--profile-steps",
        type=positive,
        metavar="N",
        help="with --profile-dir: only the first N steps (default: all)",
    )
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress bar, even in a terminal")
    add_options(parser, EngineConfig)
    parser.epilog = f"--seed also seeds prompts and lengths (default there: {SEED})."


def run(args: argparse.Namespace) -> int:
    config = parse(args, EngineConfig)
    if args.profile_steps is not None and args.profile_dir is None:
        raise CommandError(f"--profile-steps {args.profile_steps} needs --profile-dir", 2)
    from nextn.bench.console import styled
    from nextn.bench.offline import Settings, run_offline

    settings = Settings(
        config=config,
        dataset=dataset_of(args, SEED if args.random_seed is UNSET else config.random_seed),
        ignore_eos=not args.disable_ignore_eos,
        warmup=not args.skip_warmup,
        output_file=args.output_file,
        profile_dir=args.profile_dir,
        profile_steps=args.profile_steps,
        bar=styled(sys.stderr) and not args.disable_tqdm,
    )
    try:
        return run_offline(settings)
    except (ValueError, OSError) as e:
        raise CommandError(str(e)) from e
