"""Plain HTTP calls; a tool's answers are compared with theirs. Uses only the standard library, because it
also runs in the tools' environments."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

SECONDS = 120.0
# The environment's proxy must not be used for a server on this machine.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, key: str | None = None) -> Any:
    return json.loads(get_text(url, key))


def get_text(url: str, key: str | None = None) -> str:
    with OPENER.open(urllib.request.Request(url, headers=headers(key)), timeout=SECONDS) as answer:
        return answer.read().decode()


def post(url: str, body: dict[str, Any], key: str | None = None) -> Any:
    return json.loads(post_text(url, body, key))


def post_text(url: str, body: dict[str, Any], key: str | None = None) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers(key))
    with OPENER.open(request, timeout=SECONDS) as answer:
        return answer.read().decode()


def streamed(url: str, body: dict[str, Any], key: str | None = None) -> list[Any]:
    """The chunks of a stream. Raises ValueError if it does not end with [DONE]."""
    lines = [line for line in post_text(url, {**body, "stream": True}, key).splitlines() if line]
    if not lines or lines[-1] != "data: [DONE]":
        raise ValueError(f"the stream ends with {lines[-1:]}")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if line.startswith("data: ")]


def headers(key: str | None) -> dict[str, str]:
    kind = {"Content-Type": "application/json"}
    return kind if key is None else kind | {"Authorization": f"Bearer {key}"}


def metrics(url: str) -> dict[str, float]:
    """The server's /metrics: name, with labels -> value."""
    lines = [line for line in get_text(url + "/metrics").splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
