"""The parts of an answer that parsers return, and the search for markers in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nextn.tokenizer.stop import begin

Kind = Literal["reasoning", "content", "call", "arguments"]


class Part(NamedTuple):
    """A piece of an answer. The text of a "call" is the function's name. call: index of the call in the
    answer, for the kinds "call" and "arguments"."""

    kind: Kind
    text: str
    call: int = 0


def cut(text: str, markers: Sequence[str]) -> tuple[str, str | None, str]:
    """Splits a text at the first marker: the text before it, the marker, the text after it. Without a marker:
    the text that can be passed on, None, and the end of the text that may be the beginning of a marker.

    >>> cut("a<b>c", ["<b>"]), cut("a<b", ["<b>"])
    (('a', '<b>', 'c'), ('a', None, '<b'))
    """
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    if found:
        at, marker = min(found)
        return text[:at], marker, text[at + len(marker) :]
    safe = min(begin(text, marker, 0) for marker in markers)
    return text[:safe], None, text[safe:]
