"""Ends an answer after its first tool call, for `parallel_tool_calls: false`."""

from __future__ import annotations

import re

from nextn.server.parsers.answer import AnswerFormat, AnswerParser

FOUND = "tool_call"
PIECE = re.compile(r"[^>]*>|[^>]+")  # marks end with ">", so a piece ends exactly at a call's end


class FirstCall:
    """Searches an answer's text for the end of its first call. Implements `nextn.tokenizer.stream.Search`."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._parser = AnswerParser(answer_format)

    def find(self, text: str) -> tuple[int, str | None]:
        """Reads the next text. Returns the number of its characters up to the end of the first call, and
        FOUND. If no call ends in it, returns the text's length and None."""
        for piece in PIECE.finditer(text):
            self._parser.push(piece[0])
            if self._parser.calls_ended:
                return piece.end(), FOUND
        return len(text), None
