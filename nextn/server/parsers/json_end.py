"""Finds the end of a JSON value in text that arrives in pieces."""

from __future__ import annotations

import re

IN_STRING = re.compile(r'["\\]')
OUTSIDE = re.compile(r'["{}\[\],<\s]')


class JsonEnd:
    """Scans one JSON value. It knows only strings and brackets, and does not check the rest."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.found = False

    def take(self, text: str, at: int = 0) -> int:
        """Returns the position at which the value's part of text[at:] ends. This is the value's end (then
        `found` is set), a "<" outside strings, which is never JSON, or the end of the text."""
        while at < len(text) and not self.found:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (IN_STRING if self._in_string else OUTSIDE).search(text, at)
            if match is None:
                return len(text)
            mark, at = match[0], match.start()
            if self._in_string:
                self._escaped = mark == "\\"
                self._in_string = self._escaped
                self.found = not self._in_string and not self._depth
            elif mark == '"':
                self._in_string = True
            elif mark in "{[":
                self._depth += 1
            elif mark == "<" or not self._depth:
                self.found = mark != "<"
                return at
            elif mark in "}]":
                self._depth -= 1
                self.found = not self._depth
            at += 1
        return at
