"""The options of scripts that measure every level of the native kernels."""

from __future__ import annotations

import argparse

from depth_claims import positives

from nextn.bench.errors import BenchError
from nextn.config import usable_cores
from nextn.ops.cpu.library import NoLibrary, choose_level, runnable_levels


def add_level_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cpu-isa", metavar="LEVEL,...", help="levels to measure (default: all that this machine supports)"
    )
    parser.add_argument(
        "--threads",
        type=positives,
        metavar="N,...",
        help="thread counts (default: 1,2, or as many as there are cores)",
    )


def levels_and_threads(args: argparse.Namespace) -> list[tuple[str, int]]:
    """The pairs (level, threads) to measure. Raises ValueError for a level that does not run here, and
    BenchError if there are no native kernels."""
    try:
        levels = (
            [choose_level(name)[0] for name in args.cpu_isa.split(",")] if args.cpu_isa else runnable_levels()
        )
    except NoLibrary as e:
        raise BenchError(f"no native kernels: {e}") from e
    counts = args.threads or [n for n in (1, 2) if n <= usable_cores()]
    return [(level, threads) for level in levels for threads in counts]
