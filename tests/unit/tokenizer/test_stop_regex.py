"""Regular expressions that end a text: where, whatever the pieces, and at a bounded cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.tokenizer.stop_regex import StopRegexError, StopRegexes
from nextn.tokenizer.stream import TextStream
from nextn.tokenizer.tokenizer import Tokenizer

PATTERNS = ["ab", "a+b", "[b-c]{2}", "é|🙂", r"\d+x", "(?i)AB", r"\n\n[ab]", "a/b", "b$"]
TEXTS = st.text("ab1xé🙂\n/c", max_size=30)
CUTS = st.lists(st.integers(1, 4), max_size=12)


def end_of_first(pattern: str, text: str) -> int | None:
    """By Python's: the shortest beginning of the text that has a match at its end."""
    ends = (n for n in range(1, len(text) + 1) if re.search(rf"(?:{pattern})\Z", text[:n]))
    return next(ends, None)


@given(TEXTS, CUTS, st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_found_where_the_first_match_is_complete(text: str, cuts: list[int], patterns: list[str]) -> None:
    search = StopRegexes(patterns).begin()
    ends = {p: end for p in patterns if (end := end_of_first(inline(p), text)) is not None}
    at = 0
    for size in [*cuts, len(text)]:
        piece = text[at : at + size]
        used, found = search.find(piece)
        at += used
        if found is not None:
            assert at == ends[found] == min(ends.values())
            return
        assert used == len(piece)
    assert ends == {}


def inline(pattern: str) -> str:
    """Python wants flags for a part of an expression written so."""
    return re.sub(r"^\(\?i\)(.*)", r"(?i:\1)", pattern)


@given(TEXTS, CUTS, st.sampled_from(["b1", "\n", "xa"]), st.sampled_from(PATTERNS), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_in_a_stream_beside_a_stop_string(
    tokenizer: Tokenizer, text: str, cuts: list[int], stop: str, pattern: str, include: bool
) -> None:
    """What is complete first ends the text, and the stop string if it is both; the match stays in it."""

    def whole(ids: list[int]) -> str:
        return tokenizer.decode(ids).rstrip("\ufffd")

    ids = tokenizer.encode(text, add_special_tokens=False)
    stream = TextStream(tokenizer, [stop], include_stop=include, stop_regexes=StopRegexes([pattern]))
    got, used, at = "", 0, 0
    for size in [*cuts, len(ids)]:
        piece = stream.push(ids[at : at + size])
        at, got, used = at + size, got + piece.text, used + piece.tokens_used
    got += stream.finish()
    string = text.find(stop) + len(stop) if stop in text else len(text) + 1
    match = end_of_first(inline(pattern), text) or len(text) + 1
    if min(string, match) > len(text):
        assert (got, used, stream.stopped) == (text, len(ids), None)
    else:
        end = min(string, match)
        cut = 0 if include or match < string else len(stop)
        assert (got, stream.stopped) == (text[: end - cut], pattern if match < string else stop)
        assert len(whole(ids[: used - 1])) < end <= len(whole(ids[:used]))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "error: unclosed group"),
        ("a)|(b", "error: unopened group"),
        (r"\bend", "lookarounds not supported"),
        ("(?=x)y", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        ("a*", "matches the empty text, so every text would be empty"),
        ("a" * 1001, "has 1001 characters; 1000 are allowed"),
    ],
)
def test_what_cannot_be_used_is_named(pattern: str, message: str) -> None:
    with pytest.raises(StopRegexError) as error:
        StopRegexes(["fine", pattern])
    assert str(error.value).startswith(repr(pattern[:59])[:-1])
    assert message in str(error.value)


@pytest.mark.timeout(5)
def test_the_cost_is_bounded() -> None:
    """What takes Python's for ever is an expression like any other; one with too many states is an error."""
    assert StopRegexes(["(a+)+b"]).begin().find("a" * 20_000) == (20_000, None)
    with pytest.raises(StopRegexError, match="takes too much to look for in this text"):
        StopRegexes(["(.{1,300}x){1,300}y"]).begin().find("ax" * 2000)
