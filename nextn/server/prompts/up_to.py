"""Regular expressions for free text that ends with a mark (`up_to`) or has no mark in it (`without`). A mark
begins with "<" and has no other "<".

Lexers cannot backtrack, so text and mark are one terminal. After a "<", `again` matches the text up to the
next "<", and `off` the text up to a character that is not the mark's:

    up_to("<b>")   (?:[^<]|<again*off)*<again*b>   again: (?:<|b<)   off: (?:[^<b]|b[^<>])
"""

from __future__ import annotations

import re


def up_to(mark: str) -> str:
    """Matches text that ends with the first `mark` in it."""
    again, off = again_and_off(mark[1:])
    return f"(?:[^<]|<{again}*{off})*<{again}*{escaped(mark[1:])}"


def without(mark: str) -> str:
    """Matches text that has no `mark` in it."""
    again, off = again_and_off(mark[1:])
    return f"(?:[^<]|<{again}*{off})*(?:<{again}*{beginning(mark[1:-1])})?"


def again_and_off(rest: str) -> tuple[str, str]:
    """The expressions `again` and `off` after a "<". rest: the mark without its "<"."""
    again, off = "<", f"[^<{escaped(rest[-1])}]"
    for char in reversed(rest[:-1]):
        here = escaped(char)
        again, off = f"(?:<|{here}{again})", f"(?:[^<{here}]|{here}{off})"
    return again, off


def beginning(text: str) -> str:
    """Matches any beginning of the text.

    >>> beginning("ab")
    '(?:a(?:b)?)?'
    """
    found = ""
    for char in reversed(text):
        found = f"(?:{escaped(char)}{found})?"
    return found


def escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
