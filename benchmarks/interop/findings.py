"""Checks of a tool with a nextn server, and their findings: one for each use of the tool.

    checks = Checks()

    @checks("completions, streamed")
    def streamed(server): ...; return "32 chunks, the text of a plain call"

    findings = checks.run(server)

Uses only the standard library, because it also runs in the tools' environments.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WHY_LETTERS = 400


class NotRun(Exception):
    """The use cannot be tried here. The message says why."""


class Failed(Exception):
    """The tool did not work as expected. The message says what happened instead."""


@dataclass(frozen=True)
class Finding:
    """The result of one use. `outcome`: works, fails or not run. `detail`: what was compared, or why it was
    not."""

    use: str
    outcome: str
    detail: str
    seconds: float


class Checks:
    """Checks by use, in the order of their definition. If one fails, the others still run."""

    def __init__(self) -> None:
        self.by_use: dict[str, Callable[..., str]] = {}

    def __call__(self, use: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
        def add(check: Callable[..., str]) -> Callable[..., str]:
            assert use not in self.by_use, use
            self.by_use[use] = check
            return check

        return add

    def run(self, *args: Any) -> list[Finding]:
        return [try_use(use, check, *args) for use, check in self.by_use.items()]


def try_use(use: str, check: Callable[..., str], *args: Any) -> Finding:
    start = time.monotonic()
    try:
        outcome, detail = "works", check(*args)
    except NotRun as e:
        outcome, detail = "not run", str(e)
    except Failed as e:
        outcome, detail = "fails", str(e)
    except Exception as e:  # the tool itself can raise anything
        traceback.print_exc()
        outcome, detail = "fails", f"{type(e).__name__}: {e}"
    return Finding(use, outcome, " ".join(detail.split())[:WHY_LETTERS], round(time.monotonic() - start, 2))


def expect(true: object, otherwise: str) -> None:
    if not true:
        raise Failed(otherwise)


def expect_equal(found: object, expected: object, what: str) -> None:
    expect(found == expected, f"{what}: {found!r}, not {expected!r}")
