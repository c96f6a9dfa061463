"""Shared code of the scripts about automatic depth: options, and the check of a claim."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from nextn.bench.errors import BenchError
from nextn.config import CPU_LEVELS, EMBEDDED, EngineConfig

AT_LEAST = 0.97  # minimum ratio of every claim
# A run must not depend on step costs that an earlier run has saved.
NO_COST_FILE = {"step_cost_cache": "off"} if hasattr(EngineConfig, "step_cost_cache") else {}


def run_script(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and exits. An error that the user can fix becomes one line on stderr."""
    try:
        sys.exit(main())
    except (BenchError, ValueError) as e:
        sys.exit(f"{Path(sys.argv[0]).name}: error: {e}")


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model-path", default=EMBEDDED, help="checkpoint folder, or fake:1,0.75 (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="folder for the result", metavar="FOLDER")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cpu-isa", default="auto", choices=("auto", *CPU_LEVELS), help="level of the native kernels"
    )
    parser.add_argument(
        "--threads", type=positive, help="CPU threads of each engine (default: the usable cores)", metavar="N"
    )


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: it must be at least 1")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 86400:
        raise argparse.ArgumentTypeError(f"{value}: it must be more than 0, and less than a day")
    return value


def positives(text: str) -> list[int]:
    """Parses a list of positive numbers.

    >>> positives("1,4")
    [1, 4]
    """
    return [positive(part) for part in text.split(",")]


def check_claim(what: str, ratios: Mapping[str, float]) -> dict[str, object]:
    """Prints whether every ratio is at least `AT_LEAST`, and returns a record of it. ratios: by case."""
    below = {where: ratio for where, ratio in ratios.items() if ratio < AT_LEAST}
    cases = ", ".join(f"{ratio:.3f} at {where}" for where, ratio in below.items())
    print(f"claim: {what} >= {AT_LEAST}: " + (f"NO: {cases}" if below else "yes"), flush=True)
    return {"what": what, "at_least": AT_LEAST, "least": min(ratios.values()), "holds": not below}
