"""Short requests, and functions that run an engine with them."""

from __future__ import annotations

from typing import Any

from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams


def request(rid: str, tokens: int = 12) -> Request:
    return Request(rid, [5, 6, 7], SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))


def run(engine: Engine) -> list[int]:
    """The tokens of all requests, in the order in which they come."""
    tokens: list[int] = []
    while engine.has_work():
        for out in engine.step():
            tokens += out.tokens
    return tokens


def go_on(engine: Engine) -> None:
    """Runs steps until one raises."""
    while True:
        engine.check()
        if engine.has_work():
            engine.step()


def executor_of(engine: Engine) -> Any:
    return engine._executor


def runner_of(engine: Engine) -> Any:
    """The runner of an engine's steps, also if a thread is in between."""
    executor = engine._executor
    return getattr(executor, "_own", executor)
