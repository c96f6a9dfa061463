"""Runs openai_client.py in the client's environment, on a server with a key."""

from __future__ import annotations

from bench import PARSERS, Bench
from findings import Finding

KEY = "sk-interop"


def check_openai(bench: Bench) -> list[Finding]:
    server = bench.server(*PARSERS, "--api-key", KEY)
    settings = {"url": server.url, "model": bench.model, "key": KEY, "tokenizer": str(bench.tokenizer)}
    return bench.inside("openai_client.py", **settings)
