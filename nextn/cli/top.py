"""nextn top: what a server is doing, from its /metrics, again and again.

nextn top
nextn top --once    # one frame, of all that the server has done
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nextn.cli.chat import add_server
from nextn.cli.errors import CommandError

if TYPE_CHECKING:
    from nextn.terminal.scrape import Scrape

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
    import time

    from nextn.bench.errors import BenchError
    from nextn.terminal.top import Window, frame

    url = args.base_url.rstrip("/")
    window = Window(args.window)
    try:
        first = look(url, args.api_key)
    except BenchError as e:
        raise CommandError(f"{e} (see --base-url, --api-key; `nextn serve` starts a server)", 1) from e
    if args.once:
        print(frame(url, first), end="")
        return 0
    text = frame(url, window.push(first))
    with screen() as show:
        while True:
            show(text)
            time.sleep(args.interval)
            try:
                text = frame(url, window.push(look(url, args.api_key)))
            except BenchError as e:
                text = f"no answer: {e}\n"


def look(url: str, api_key: str | None) -> Scrape:
    """Takes one scrape. Raises BenchError."""
    import asyncio
    import time

    from nextn.bench.client import get_text
    from nextn.bench.errors import BenchError
    from nextn.terminal.scrape import Scrape

    text = asyncio.run(get_text(url, "/metrics", api_key))
    try:
        return Scrape.read(text, time.monotonic())
    except ValueError as e:
        raise BenchError(f"{url}/metrics: not in Prometheus' format: {e}") from e


@contextmanager
def screen() -> Iterator[Callable[[str], None]]:
    """Shows frames in place on a terminal, and one after another elsewhere."""
    if not sys.stdout.isatty():
        yield lambda text: print(text, flush=True)
        return

    def show(text: str) -> None:
        print("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[J", end="", flush=True)

    print("\x1b[?1049h\x1b[?25l", end="")
    try:
        yield show
    finally:
        print("\x1b[?25h\x1b[?1049l", end="", flush=True)
