"""nextn top: shows a server's load, latencies and accepted drafts, from its /metrics, and updates regularly.

nextn top
nextn top --once    # one frame, with the numbers since the server started
"""

from __future__ import annotations

import argparse

from nextn.cli.chat import add_server
from nextn.cli.errors import CommandError

HELP = "watch a running server: load, latencies, caches, accepted drafts"


def positive_seconds(text: str) -> float:
    seconds = float(text)
    if not 0.05 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.05 and 3600 seconds")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "--once", action="store_true", help="print one frame with the numbers since the server started"
    )
    parser.add_argument(
        "--interval", type=positive_seconds, default=1.0, metavar="SECONDS",
        help="seconds between two frames (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=positive_seconds, default=10.0, metavar="SECONDS",
        help="seconds that rates and quantiles cover (default: 10)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    import asyncio

    from nextn.bench.errors import BenchError
    from nextn.terminal.watch import watch

    url = args.base_url.rstrip("/")
    try:
        asyncio.run(watch(url, args.api_key, args.once, args.interval, args.window))
    except BenchError as e:
        raise CommandError(f"{e} (see --base-url, --api-key; `nextn serve` starts a server)", 1) from e
    return 0
