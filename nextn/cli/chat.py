"""nextn chat: a chat with a server in the terminal. After each answer it shows how many drafts were accepted.

nextn chat
nextn chat --model smollm2
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

HELP = "chat with a server; shows after each answer how many drafts were accepted"
URL = "http://127.0.0.1:30000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "--model-path", "--model", metavar="MODEL",
        help="start a server of this model, for as long as the chat lasts, in place of a running one",
    )  # fmt: skip
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
    """The key in nextn's own variable, or else in OPENAI_API_KEY."""
    return os.environ.get(API_KEY_VARIABLE) or os.environ.get("OPENAI_API_KEY") or None


def run(args: argparse.Namespace) -> int:
    if args.model_path is None:
        return chat_on(args, args.base_url.rstrip("/"), args.api_key)
    if args.base_url != URL:
        raise CommandError("--model-path starts a server, --base-url names a running one; leave one out")
    import tempfile
    from pathlib import Path

    from nextn.bench.errors import BenchError
    from nextn.bench.local_server import LocalServer, ended_like_ctrl_c

    with tempfile.TemporaryDirectory(prefix="nextn-chat-") as folder, ended_like_ctrl_c():
        options = ["--model-path", args.model_path]
        with LocalServer(args.model_path, options, Path(folder) / "server.log") as server:
            say(f"starting {args.model_path}")
            try:
                server.wait_ready()
            except BenchError as e:
                raise CommandError("\n".join([str(e), *server.last_lines()]), 1) from e
            return chat_on(args, server.url, None)


def chat_on(args: argparse.Namespace, url: str, api_key: str | None) -> int:
    """Runs a conversation with the server at `url`. Returns the exit code. Raises CommandError if the server
    does not answer."""
    import asyncio

    from nextn.bench.client import get
    from nextn.bench.errors import BenchError
    from nextn.terminal.chat import COMMANDS, Chat, ChatOptions, greeting, is_embedded
    from nextn.terminal.lines import line_reader

    try:
        card = asyncio.run(get(url, "/v1/models", api_key))["data"][0]
    except BenchError as e:
        raise CommandError(f"{e} (see --base-url, --api-key; `nextn serve` starts a server)", 1) from e
    temperature = 0.0 if args.temperature is None and is_embedded(card) else args.temperature
    options = ChatOptions(url, card["id"], api_key, args.max_tokens, temperature, args.seed)
    chat = Chat(options, args.system, not args.no_mtp)
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
    """Prints a message to stderr, so that stdout has only the model's text. It is dim on a terminal."""
    from nextn.bench.console import console

    console(sys.stderr).print(text, style="dim", soft_wrap=True)
