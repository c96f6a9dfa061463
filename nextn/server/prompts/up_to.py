"""Regular expressions of free text that a mark ends, or that has none. A mark begins with the only "<" in it.

Lexers do not go back, so text and mark are one terminal. After a "<", `again` is how a text comes to the
next "<", and `off` how it comes to a character that is not the mark's:

    up_to("<b>")   (?:[^<]|<again*off)*<again*b>   again: (?:<|b<)   off: (?:[^<b]|b[^<>])
"""

from __future__ import annotations

import re


def up_to(mark: str) -> str:
    """Text that ends with the first `mark` in it."""
    again, off = ways(mark[1:])
    return f"(?:[^<]|<{again}*{off})*<{again}*{escaped(mark[1:])}"


def without(mark: str) -> str:
    """Text that has no `mark` in it."""
    again, off = ways(mark[1:])
    return f"(?:[^<]|<{again}*{off})*(?:<{again}*{beginning(mark[1:-1])})?"


def ways(rest: str) -> tuple[str, str]:
    """After "<", along the rest of a mark: back to a "<", and off to another character."""
    again, off = "<", f"[^<{escaped(rest[-1])}]"
    for char in reversed(rest[:-1]):
        here = escaped(char)
        again, off = f"(?:<|{here}{again})", f"(?:[^<{here}]|{here}{off})"
    return again, off


def beginning(text: str) -> str:
    """Any beginning of the text.

    >>> beginning("ab")
    '(?:a(?:b)?)?'
    """
    found = ""
    for char in reversed(text):
        found = f"(?:{escaped(char)}{found})?"
    return found


def escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
