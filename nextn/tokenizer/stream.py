"""Turns the tokens of one choice into text while they arrive.

The text of `TextStream` does not depend on how the tokens were divided into pushes. A step that commits four
tokens sends the same text and counts the same tokens as four steps that commit one:

- without a stop string, all `Piece.text` and `finish()` together are `Tokenizer.decode(all ids)`;
- with one, the text goes up to the stop string, and the tokens up to the one that completed it. Tokens are
  processed one by one, and after each one the complete characters are searched (`StopStrings`). Text that
  matches a stop regex stays in the answer.

A character whose bytes belong to several tokens is sent when it is complete. Bytes that cannot become a
character are sent as U+FFFD. At the end, `finish` sends an incomplete character; it is not searched for stop
strings.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nextn.tokenizer.stop import StopStrings
from nextn.tokenizer.stop_regex import StopRegexes
from nextn.tokenizer.tokenizer import Tokenizer

UTF8 = codecs.getincrementaldecoder("utf-8")


class Piece(NamedTuple):
    """The result of one push. `text`: to send. `tokens_used`: number of pushed tokens that belong to the
    answer. It is lower than the number pushed if a token before the last completed a stop string. `stopped`:
    that stop string or stop regex."""

    text: str
    tokens_used: int
    stopped: str | None


class Search(Protocol):
    """Searches for the end of a text, which it gets in parts."""

    def find(self, text: str) -> tuple[int, str | None]:
        """Searches the next part. Returns (number of its characters up to the end, what ended it), or (all
        its characters, None) without an end. It is not called again after an end."""


class TextStream:
    """Tokens in, text out, for one choice.

    `include_stop`: the text keeps the stop string or end token. `shown`: special tokens that are not skipped.
    `ends`: another search for the end; the text keeps what it found. Raises ValueError for an empty stop
    string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop: bool = False,
        shown: frozenset[str] = frozenset(),
        stop_regexes: StopRegexes | None = None,
        ends: Search | None = None,
    ) -> None:
        self.token_bytes = tokenizer.token_bytes(skip_special_tokens, shown)
        self._utf8 = UTF8("replace")
        self._stop = StopStrings(stop, include_stop) if stop else None
        self._include = include_stop
        self._searches: list[Search] = [stop_regexes.begin()] if stop_regexes else []
        self._searches += [] if ends is None else [ends]
        self.searches = self._stop is not None or bool(self._searches)  # whether anything can end the text
        self.stopped: str | None = None  # the stop string or regex that ended the text

    def push(self, token_ids: Sequence[int]) -> Piece:
        if self.stopped is not None:
            return Piece("", 0, self.stopped)
        if not self.searches:
            data = b"".join([self.token_bytes[token_id] for token_id in token_ids])
            return Piece(self._utf8.decode(data), len(token_ids), None)
        texts: list[str] = []
        for used, token_id in enumerate(token_ids, 1):
            text, stop = self._look(self._utf8.decode(self.token_bytes[token_id]))
            texts.append(text)
            if stop is not None:
                self.stopped = stop
                return Piece("".join(texts), used, stop)
        return Piece("".join(texts), len(token_ids), None)

    def _look(self, whole: str) -> tuple[str, str | None]:
        """Searches the text of one token. Returns the text that can be sent now, and what ended the text:
        whichever of a stop string, a regex and `ends` is complete first."""
        end, matched = len(whole), None
        for search in self._searches:
            end, found = search.find(whole[:end])
            matched = found or matched
        if self._stop is None:
            return whole[:end], matched
        text, stop = self._stop.push(whole[:end])
        if stop is None and matched is not None:
            text += self._stop.rest()
        return text, stop or matched

    def finish(self, end_token: int | None = None) -> str:
        """Returns the text held back; "" after a stop string. Do not push anything after it. `end_token`: the
        token that ended the text, which is not in any push."""
        if self.stopped is not None:
            return ""
        held = self._stop.rest() if self._stop else ""
        return held + self._utf8.decode(self.kept_of(end_token), True)

    def kept_of(self, end_token: int | None) -> bytes:
        """Returns the bytes of the end token if the text keeps it, else b""."""
        return self.token_bytes[end_token] if self._include and end_token is not None else b""
