"""Finds stop strings in text that arrives in pieces, and holds back text that may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Searches pieces of text in order. `push` returns only text in which no stop string can begin any more.

    A piece is the text of one token. After each piece, the text so far is searched. The occurrence that
    begins first wins; among stop strings that begin at the same place, the shortest.

    With stop "\\n\\n": push("a\\n") -> "a"; push("b\\n") -> "\\nb"; push("\\nc") -> "", found "\\n\\n".

    Raises ValueError for an empty stop string.
    """

    def __init__(self, stop: Sequence[str], include_stop: bool = False) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty; leave it out")
        self._stop = tuple(stop)
        self._include = include_stop
        self._starts = [0] * len(self._stop)  # per stop string: where in `_held` it may begin
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """Returns the text that is safe to send, and the stop string if one is complete now. Do not push
        anything after a stop string."""
        text = self._held + piece
        found: tuple[int, int, str] | None = None
        for stop, start in zip(self._stop, self._starts, strict=True):
            at = text.find(stop, start)
            if at >= 0 and (found is None or (at, len(stop)) < found[:2]):
                found = at, len(stop), stop
        if found is not None:
            at, length, stop = found
            self._held = ""
            return text[: at + length] if self._include else text[:at], stop
        starts = [begin(text, stop, start) for stop, start in zip(self._stop, self._starts, strict=True)]
        safe = min(starts)
        self._starts = [start - safe for start in starts]
        self._held = text[safe:]
        return text[:safe], None

    def rest(self) -> str:
        """Returns the text held back when the input ends; "" after a stop string."""
        held, self._held = self._held, ""
        return held


def begin(text: str, stop: str, start: int) -> int:
    """The first i >= start such that `stop` starts with text[i:]; len(text) if there is none.

    `stop` must not occur in text[start:]. `push` continues from the last result, so the number of places
    tried per character is constant on average for any stop string.

    >>> begin("xaab", "abc", 0)
    2
    """
    i = max(start, len(text) - len(stop) + 1)
    while not stop.startswith(text[i:]):
        i = text.find(stop[0], i + 1)
        if i < 0:
            return len(text)
    return i
