"""The dataset options, which several commands of `nextn bench` share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nextn.cli.demo import positive

# The same as in nextn.bench, which takes too long to import for --help. A test compares them.
DATASETS = ("code", "random", "random-ids", "sharegpt", "custom", "generated-shared-prefix")


def add_dataset(group: Any) -> None:
    group.add_argument(
        "--dataset-name", choices=DATASETS, default="code", help="prompts (default: code, held-out Python)"
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="file of sharegpt, custom or random")
    group.add_argument(
        "--num-prompts", type=positive, metavar="N", help="number of prompts (default: 64; custom: all)"
    )
    counts = (
        ("--output-len", 128, "output tokens of code, and of custom lines without output_len"),
        ("--random-input-len", 1024, "maximum prompt length of random and random-ids"),
        ("--random-output-len", 1024, "maximum output length of random and random-ids"),
        ("--gsp-num-groups", 64, "generated-shared-prefix: groups of prompts with a common prefix"),
        ("--gsp-prompts-per-group", 16, "generated-shared-prefix: prompts in each group"),
        ("--gsp-system-prompt-len", 2048, "generated-shared-prefix: tokens of the shared prefix"),
        ("--gsp-question-len", 128, "generated-shared-prefix: further tokens of each prompt"),
        ("--gsp-output-len", 256, "generated-shared-prefix: output tokens"),
    )
    for flag, default, text in counts:
        group.add_argument(
            flag, type=positive, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, metavar="R",
        help="random lengths are uniform between R times the maximum and the maximum (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--sharegpt-output-len",
        type=positive,
        metavar="N",
        help="output tokens of sharegpt (default: as in the file)",
    )
    group.add_argument(
        "--sharegpt-context-len",
        type=positive,
        metavar="N",
        help="leave out conversations of sharegpt that are longer than this",
    )


def dataset_of(args: argparse.Namespace, seed: int) -> Any:
    """Returns a nextn.bench.datasets.Options. seed: seed of prompts and lengths."""
    from nextn.bench.datasets import Options

    given = {name: getattr(args, name) for name in Options.__dataclass_fields__ if hasattr(args, name)}
    return Options(**given | {"name": args.dataset_name, "path": args.dataset_path, "seed": seed})


def not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value}: it must not be negative")
    return value
