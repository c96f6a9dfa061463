"""nextn eval: runs lm-eval without and with MTP, and compares the scores.

nextn eval                                           # the embedded model on the two tasks in the package
nextn eval --tasks mmlu gsm8k --limit 50 --model-path /models/DeepSeek-V3-0324
nextn eval --base-url http://a:30000 http://b:30000  # running servers: the first without MTP, the second with
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nextn.cli.bench.arguments import not_negative
from nextn.cli.demo import drafts, positive
from nextn.cli.errors import CommandError
from nextn.config import EMBEDDED

HELP = "run lm-eval on a server without MTP and on one with it, and show both scores side by side"
# The same as in nextn.eval.tasks, which is not imported for --help. A test compares them.
TASKS = ("nextn_next_line", "nextn_rest_of_line")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), metavar="NAME",
        help=f"lm-eval's task names, such as mmlu (default: {' '.join(TASKS)}, which need no download)",
    )  # fmt: skip
    parser.add_argument(
        "--model-path", "--model", default=EMBEDDED, metavar="DIR",
        help=f"checkpoint folder for the two servers that are started (default: {EMBEDDED})",
    )  # fmt: skip
    parser.add_argument(
        "--speculative-num-steps", type=drafts, default="auto", metavar="N|auto",
        help="drafts per step of the server with MTP (default: auto)",
    )  # fmt: skip
    parser.add_argument(
        "--base-url", nargs="+", default=[], metavar="URL",
        help="use running servers: one without MTP and one with it, or a single one to score only that",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="folder with tokenizer.json, if it is not the model's"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="first N documents of each task")
    parser.add_argument(
        "--num-fewshot",
        type=not_negative,
        metavar="N",
        help="examples before each document (default: the task's)",
    )
    parser.add_argument(
        "--num-concurrent", type=positive, default=16, metavar="N", help="requests at once (default: 16)"
    )
    parser.add_argument(
        "--apply-chat-template", action="store_true",
        help="send the prompts as chats, rendered by the checkpoint's chat template",
    )  # fmt: skip
    parser.add_argument(
        "--confirm-run-unsafe-code", action="store_true",
        help="run programs that the model writes, which openai_humaneval needs",
    )  # fmt: skip
    parser.add_argument(
        "--include-path", type=Path, metavar="DIR", help="folder with more tasks, in lm-eval's YAML format"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("nextn-eval"), metavar="DIR",
        help="folder for results.json, table.md and the logs (default: nextn-eval)",
    )  # fmt: skip
    parser.add_argument(
        "server_options", nargs="*", metavar="-- OPTION",
        help="after --: options of `nextn serve`, for both servers that are started",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from nextn.bench.errors import BenchError
    from nextn.eval.run import Settings, run_eval

    if len(args.base_url) > 2:
        raise CommandError(
            f"--base-url has {len(args.base_url)} servers; name one, or without MTP and with it"
        )
    if args.base_url and args.server_options:
        raise CommandError(
            f"{args.server_options[0]}: options after -- are for servers that are started here"
        )
    settings = Settings(
        tasks=args.tasks,
        model_path=args.model_path,
        num_steps=args.speculative_num_steps,
        server_options=args.server_options,
        base_urls=args.base_url,
        tokenizer=args.tokenizer,
        api_key=os.environ.get("OPENAI_API_KEY") if args.base_url else None,
        limit=args.limit,
        num_fewshot=args.num_fewshot,
        concurrency=args.num_concurrent,
        include_path=args.include_path,
        runs_programs=args.confirm_run_unsafe_code,
        chats=args.apply_chat_template,
        output_dir=args.output_dir,
        bars=sys.stderr.isatty(),
    )
    try:
        return run_eval(settings)
    except BenchError as e:
        raise CommandError(str(e), 1) from e
    except (ValueError, OSError) as e:
        raise CommandError(str(e)) from e
