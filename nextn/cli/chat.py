"""nextn chat: talk to a running server, and see after each answer what speculation did.

nextn chat
nextn chat --base-url http://127.0.0.1:8000 --temperature 0.7 --system "Answer in one line."
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from nextn.cli.demo import positive
from nextn.cli.errors import CommandError
from nextn.server_config import API_KEY_VARIABLE

if TYPE_CHECKING:
    from nextn.terminal.chat import Chat

HELP = "chat with a running server; shows after each answer how many drafts were accepted"
URL = "http://127.0.0.1:30000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--system", default="", metavar="TEXT", help="system message")
    parser.add_argument(
        "--max-tokens", type=positive, default=512, help="maximum tokens of an answer (default: 512)"
    )
    parser.add_argument(
        "--temperature", type=float,
        help="0 is greedy (default: the server's; for the model in the package 0)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, help="seed of every answer (default: random)")
    parser.add_argument("--no-mtp", action="store_true", help="start without drafts, as after /nomtp")


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", metavar="URL", default=URL, help=f"the server (default: {URL})")
    parser.add_argument(
        "--api-key", metavar="KEY", default=key_of_environment(),
        help=f"the server's key (default: environment variable {API_KEY_VARIABLE}, else OPENAI_API_KEY)",
    )  # fmt: skip


def key_of_environment() -> str | None:
    """Reads the server's own variable first, then OPENAI_API_KEY."""
    return os.environ.get(API_KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY") or None


def run(args: argparse.Namespace) -> int:
    import asyncio

    from nextn.bench.client import get
    from nextn.bench.errors import BenchError
    from nextn.terminal.chat import COMMANDS, Asked, Chat, greeting, is_embedded
    from nextn.terminal.lines import line_reader

    url = args.base_url.rstrip("/")
    try:
        card = asyncio.run(get(url, "/v1/models", args.api_key))["data"][0]
    except BenchError as e:
        raise CommandError(f"{e} (see --base-url, --api-key; `nextn serve` starts a server)", 1) from e
    temperature = 0.0 if args.temperature is None and is_embedded(card) else args.temperature
    asked = Asked(url, card["id"], args.api_key, args.max_tokens, temperature, args.seed)
    chat = Chat(asked, args.system, not args.no_mtp)
    read = line_reader(COMMANDS)
    say(greeting(url, card, temperature))
    while not chat.ended:
        try:
            text = read()
        except EOFError:
            break
        except KeyboardInterrupt:
            print(flush=True)
            raise
        said = chat.command(text)
        if said is None and text.strip():
            converse(chat, text[1:] if text.startswith(" /") else text)
        elif said:
            say(said)
    return 0


def converse(chat: Chat, text: str) -> None:
    import asyncio

    from nextn.bench.console import harmless
    from nextn.bench.errors import BenchError

    terminal = sys.stdout.isatty()

    def show(piece: str) -> None:
        print(harmless(piece) if terminal else piece, end="", flush=True)

    try:
        said = asyncio.run(chat.answer(text, show))
    except BenchError as e:
        say(f"error: {e}")
    except KeyboardInterrupt:
        print(flush=True)
        say("stopped")
    else:
        print(flush=True)
        say(said)


def say(text: str) -> None:
    """Writes a remark for the person, not for the text; faint on a terminal."""
    from nextn.bench.console import console

    console(sys.stderr).print(text, style="dim", soft_wrap=True)
