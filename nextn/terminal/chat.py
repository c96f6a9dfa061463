"""A conversation with a server, line by line. Executes commands, sends messages, and shows the answers while
they arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from nextn.bench.apis import CHAT
from nextn.bench.client import events, make_client, refusal
from nextn.bench.errors import BenchError
from nextn.bench.prompts import EXAMPLE
from nextn.config import EMBEDDED

COMMANDS = {
    "/clear": "forget the conversation; the system message stays",
    "/system": "set the system message to the text that follows; without text: none",
    "/nomtp": "switch drafts off",
    "/mtp": "use the server's default for drafts",
    "/help": "show this",
    "/quit": "end the program, as Ctrl-D does",
}
HELP = "".join(f"{name:11}{what}\n" for name, what in COMMANDS.items())
HELP += """\
Alt+Enter  begin a new line (or Esc, then Enter); pasted lines stay together
Ctrl-C     end an answer and keep its text so far
A text that begins with a space and a slash is sent without the space."""


@dataclass(frozen=True)
class ChatOptions:
    """The server's address and the sampling parameters of all answers. None means the server's default."""

    url: str
    model: str | None = None
    api_key: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None


def greeting(url: str, card: Mapping[str, Any], temperature: float | None) -> str:
    """The text to show first. card: the model's entry in /v1/models."""
    lines = [f"{card['id']} on {url}"]
    if is_embedded(card):
        how = "greedily" if not temperature else f"at temperature {temperature:g}"
        lines += [
            f"This model completes Python code, {how}. It is no chat model and follows no instructions. Try:",
            *(f"    {line}" for line in EXAMPLE.splitlines()),
        ]
    return "\n".join([*lines, f"commands: {' '.join(COMMANDS)}; Alt+Enter begins a new line"])


def is_embedded(card: Mapping[str, Any]) -> bool:
    """Whether the server runs the model in the package, under any name."""
    return Path(str(card.get("root") or card["id"])).name == EMBEDDED


class Chat:
    def __init__(self, options: ChatOptions, system: str = "", drafts: bool = True) -> None:
        self.options, self.system, self.drafts = options, system, drafts
        self.messages: list[dict[str, str]] = []  # without the system message
        self.ended = False

    def command(self, line: str) -> str | None:
        """Executes a command and returns the text to print. Returns None if the line is no command."""
        if not line.startswith("/"):
            return None
        name, _, rest = line.partition(" ")
        if name == "/quit":
            self.ended = True
            return ""
        if name == "/clear":
            self.messages.clear()
            return "the conversation is cleared"
        if name == "/system":
            self.system = rest.strip()
            return "the system message is set" if self.system else "no system message"
        if name in ("/mtp", "/nomtp"):
            self.drafts = name == "/mtp"
            return "drafts: the server's" if self.drafts else "drafts: none"
        return HELP if name == "/help" else f"{name} is not a command; /help lists them"

    def body(self) -> dict[str, Any]:
        options = self.options
        system = [{"role": "system", "content": self.system}] if self.system else []
        given = {
            "model": options.model,
            "max_completion_tokens": options.max_tokens,
            "temperature": options.temperature,
            "seed": options.seed,
            "speculative": None if self.drafts else False,
        }
        return {
            "messages": [*system, *self.messages],
            "return_spec_tokens_details": True,
            **{name: value for name, value in given.items() if value is not None},
        }

    async def answer(self, text: str, show: Callable[[str], None]) -> str:
        """Sends `text`, shows the answer as it arrives, and returns the summary to print.

        After a BenchError the conversation is unchanged. After a cancellation it has the text so far.
        """
        self.messages.append({"role": "user", "content": text})
        parts: list[str] = []
        try:
            said = await self._stream(parts, show)
        except BenchError:
            self.messages.pop()
            raise
        except asyncio.CancelledError:
            self._keep(parts)
            raise
        self._keep(parts)
        return said

    def _keep(self, parts: list[str]) -> None:
        self.messages.append({"role": "assistant", "content": "".join(parts)})

    async def _stream(self, parts: list[str], show: Callable[[str], None]) -> str:
        usage: Mapping[str, Any] = {}
        arrivals: list[float] = []
        sent = time.perf_counter()
        ended = False
        try:
            async with (
                make_client(self.options.url, api_key=self.options.api_key) as client,
                client.stream("POST", CHAT.path, json=CHAT.streamed(self.body())) as response,
            ):
                if response.status_code != 200:
                    raise refusal(response.status_code, await response.aread())
                async for data in events(response.aiter_bytes()):
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise refusal(response.status_code, data)
                    update = CHAT.read(chunk)
                    if update.text:
                        arrivals.append(time.perf_counter())
                        parts.append(update.text)
                        show(update.text)
                    usage = chunk.get("usage") or usage
                    ended = ended or update.ends
        except httpx.HTTPError as e:
            raise BenchError(f"{self.options.url}: {type(e).__name__}: {e}") from e
        except (ValueError, KeyError, TypeError) as e:
            raise BenchError(f"{self.options.url}: unreadable answer: {type(e).__name__}: {e}") from e
        if not ended:
            raise BenchError(f"{self.options.url}: the answer ended before it was complete")
        return summary(usage, [at - sent for at in arrivals])


def summary(usage: Mapping[str, Any], arrivals: list[float]) -> str:
    """The line to print after an answer. arrivals: seconds from the request to each piece of text."""
    tokens = usage.get("completion_tokens", 0)
    said = [f"{tokens} tokens"]
    spec = usage.get("spec_details")
    if spec and spec["verify_steps"]:
        pairs = zip(spec["accepted"], spec["proposed"], strict=True)
        rates = " ".join(f"{a / p:.0%}" for a, p in pairs if p)
        said.append(f"accept length {spec['accept_length']:.2f}{f' ({rates})' if rates else ''}")
    if arrivals:
        said.append(f"TTFT {arrivals[0] * 1e3:.0f} ms")
        said.append(f"{tokens / arrivals[-1]:.0f} tok/s")
    return ", ".join(said)
