"""Searches text for regular expressions that end it, while the text arrives.

llguidance's matcher reads the text byte by byte and never goes back. So each character takes a few
microseconds for any expression. An expression that exceeds the limits ends in an error. A match ends at the
first possible character, so the end of a text does not depend on its division into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported late: it takes 0.1 s, and few requests need it
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_LENGTH = 1000  # characters of an expression
# Limits on the library's work for an expression: FUEL steps to compile it, FUEL steps to search all texts of
# a request, and STATES states. This takes about 1 MB, and 5 ms at once.
FUEL, STATES = 50_000, 2_000


class StopRegexError(ValueError):
    """An expression is invalid, or too expensive to search for."""


class StopRegexes:
    """Compiled expressions, which several texts may share. Raises StopRegexError that names the invalid
    one."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._matchers = [compiled(pattern) for pattern in patterns]

    def begin(self) -> StopRegexSearch:
        return StopRegexSearch(self.patterns, [matcher.deep_copy() for matcher in self._matchers])


class StopRegexSearch:
    """The search in one text."""

    def __init__(self, patterns: Sequence[str], matchers: Sequence[LLMatcher]) -> None:
        self._each = list(zip(patterns, matchers, strict=True))

    def find(self, text: str) -> tuple[int, str | None]:
        """Searches the next part of the text. Returns (number of its characters up to the end of the first
        match, the expression), or (all its characters, None) without a match. Do not call it after a match.
        Raises StopRegexError if the search exceeds a limit."""
        for at, char in enumerate(text, 1):
            data = list(char.encode())
            for pattern, matcher in self._each:
                matcher.try_consume_tokens(data)
                if matcher.is_error():
                    raise StopRegexError(f"{shortened(pattern)} takes too much to look for in this text")
                if matcher.is_accepting():
                    return at, pattern
        return len(text), None


def compiled(pattern: str) -> LLMatcher:
    """Compiles a grammar of all texts that end with a match. Raises StopRegexError."""
    from llguidance import LLMatcher

    check_length(pattern)
    tokenizer, limits = library()
    # The expression alone first: "a)|(b" is valid only inside brackets.
    for whole in (pattern, f"(?s:.*)(?:{pattern})"):
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(whole), log_level=0, limits=limits)
        if matcher.is_error():
            _, _, message = matcher.get_error().rpartition("(in regex):")
            why = " ".join(message.partition("\n\n")[0].split())
            raise StopRegexError(f"{shortened(pattern)} is not a regular expression that can be used: {why}")
    if matcher.is_accepting():
        raise StopRegexError(f"{shortened(pattern)} matches the empty text, so every text would be empty")
    matcher.compute_bitmask()  # the limits on searching count from the last mask
    return matcher


@cache
def library() -> tuple[LLTokenizer, LLParserLimits]:
    from llguidance import LLParserLimits, LLTokenizer

    limits = LLParserLimits(initial_lexer_fuel=FUEL, step_lexer_fuel=FUEL, max_lexer_states=STATES)
    return LLTokenizer("byte"), limits  # token i is byte i


def check_length(pattern: str) -> None:
    """Raises StopRegexError if the expression is too long."""
    if len(pattern) > MAX_LENGTH:
        message = f"{shortened(pattern)} has {len(pattern)} characters; {MAX_LENGTH} are allowed"
        raise StopRegexError(message)


def shortened(pattern: str) -> str:
    return repr(pattern) if len(pattern) <= 60 else repr(pattern[:59]) + "…"
