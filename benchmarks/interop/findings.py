"""What a tool was found to do with a nextn server: one finding for each use of it.

    checks = Checks()

    @checks("completions, streamed")
    def streamed(server): ...; return "32 chunks, the text of a plain call"

    findings = checks.run(server)

Standard library only: it also runs in the tools' own environments.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WHY_LETTERS = 400


class NotRun(Exception):
    """A use that cannot be tried here; says why."""


class Failed(Exception):
    """The tool did not do what it is for; says what came instead."""


@dataclass(frozen=True)
class Finding:
    """`outcome`: works, fails or not run. `detail`: what was compared, or why not."""

    use: str
    outcome: str
    detail: str
    seconds: float


class Checks:
    """Checks by the use they try, run in the order they were written down. One that fails does not end the
    others."""

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
    except Exception as e:  # of the tool itself, whatever it raises
        traceback.print_exc()
        outcome, detail = "fails", f"{type(e).__name__}: {e}"
    return Finding(use, outcome, " ".join(detail.split())[:WHY_LETTERS], round(time.monotonic() - start, 2))


def expect(true: object, otherwise: str) -> None:
    if not true:
        raise Failed(otherwise)


def expect_equal(found: object, expected: object, what: str) -> None:
    expect(found == expected, f"{what}: {found!r}, not {expected!r}")
