"""nextn bench micro: measures every op and whole steps against the ceilings of this machine.

nextn bench micro --quick                                    # under 40 s; the last line is JSON
nextn bench micro --output-dir micro --threads 2             # JSON, Markdown tables, a roofline
nextn bench micro --weight-format Q4_K                       # ops with weights as in a GGUF file
nextn bench micro --model-path DIR --kernel-backend reference --dtype bfloat16
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nextn.cli.errors import CommandError
from nextn.cli.options import add_options, parse
from nextn.config import EngineConfig

FORMATS = ("bf16", "e4m3", "int8", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "INT4")
HELP = "measure every op and whole steps against this machine's read bandwidth and peak arithmetic"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 s on two cores")
    parser.add_argument(
        "--output-dir", type=Path, metavar="DIR", help="write micro.json, micro.md and roofline.png"
    )
    parser.add_argument(
        "--weight-format", choices=FORMATS, default="bf16",
        help="format of the weights that the native ops multiply with; steps have the model's own (default: "
        "bf16)",
    )  # fmt: skip
    parser.add_argument(
        "--disable-tqdm", action="store_true", help="show no progress bar, even in a terminal"
    )
    add_options(parser, EngineConfig)
    parser.epilog = (
        "step_overhead_ms: the time of an engine step at one row less the time in its ops, or in the native "
        "model's calls. The results are those of the backend that the engine would run; --kernel-backend "
        "reference measures plain torch alone. --dtype applies to ops and steps, and to the linear of the "
        "headline, which is bfloat16 by default."
    )


def run(args: argparse.Namespace) -> int:
    config = parse(args, EngineConfig)
    from nextn.bench.console import styled
    from nextn.bench.dev.micro.formats import FORMATS as KNOWN
    from nextn.bench.dev.micro.run import Settings, run_micro

    bar = styled(sys.stderr) and not args.disable_tqdm
    try:
        return run_micro(Settings(config, args.quick, args.output_dir, bar, KNOWN[args.weight_format]))
    except (ValueError, OSError) as e:
        raise CommandError(str(e)) from e
