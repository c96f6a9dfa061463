"""The sides of a comparison: servers started with options of `nextn serve`, and running servers.

On the command line they are NAME="serve options", a list of draft counts, or NAME=[BACKEND+]URL.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from nextn.bench.apis import BACKENDS

OURS = ("--port", "--host")  # options that only the benchmark sets


@dataclass(frozen=True)
class SideSpec:
    """One side. `options`: options of a server to start. `url`, `backend`: those of a running server."""

    name: str
    options: tuple[str, ...] = ()
    url: str | None = None
    backend: str = "nextn"

    @property
    def started(self) -> bool:
        return self.url is None


def num_steps_sides(text: str) -> list[SideSpec]:
    """ "0,1,2" -> one side for each. The server itself checks words such as "auto". Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"--num-steps {text}: it must be a list such as 0,1,2")
    names = {"0": "MTP off", "1": "1 draft"}
    return [
        SideSpec(
            names.get(word, f"{word} drafts" if word.isdecimal() else word), ("--speculative-num-steps", word)
        )
        for word in words
    ]


def option_side(text: str) -> SideSpec:
    """NAME="serve options" -> a side; no options: a server with the defaults. Raises ValueError."""
    name, options = halves("--side", text, 'NAME="options of nextn serve"')
    try:
        words = tuple(shlex.split(options))
    except ValueError as e:
        raise ValueError(f"--side {text}: {e}") from e
    for word in words:
        if word.partition("=")[0] in OURS:
            raise ValueError(f"--side {text}: the benchmark sets {word}; leave it out")
    return SideSpec(name, words)


def url_side(text: str) -> SideSpec:
    """NAME=[BACKEND+]URL -> a side. Raises ValueError."""
    name, place = halves("--base-url-side", text, "NAME=[BACKEND+]URL")
    backend, plus, url = place.partition("+")
    if not plus or "://" in backend:  # no backend; a plus sign then belongs to the URL
        backend, url = "nextn", place
    if backend not in BACKENDS:
        raise ValueError(f"--base-url-side {text}: backend {backend!r}; choose from {', '.join(BACKENDS)}")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--base-url-side {text}: {url!r} is not a URL such as http://127.0.0.1:8000")
    return SideSpec(name, url=url.rstrip("/").removesuffix("/v1"), backend=backend)


def halves(option: str, text: str, form: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    name = name.strip()
    if not equals or not name or not name.isprintable() or "|" in name:
        raise ValueError(f"{option} {text}: it must be {form}")
    return name, rest.strip()


def check_sides(sides: Sequence[SideSpec]) -> None:
    """Raises ValueError if there are fewer than two sides, or if two have the same name."""
    names = [side.name for side in sides]
    if len(names) < 2:
        raise ValueError(f"there is only one side ({names[0]}); add another with --side or --num-steps")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two sides are called {name!r}; give them different names")
