"""TextStream: the same text and token count however the tokens are cut, for any bytes and stop strings."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nextn.config import model_folder
from nextn.tokenizer import TextStream, Tokenizer
from nextn.tokenizer.stop import StopStrings

ANY_ID = st.integers(0, 410)  # special tokens, every byte, merges, ids outside the vocabulary
CUTS = st.lists(st.integers(0, 6), max_size=40)
# Few letters, so that stop strings are found, overlap and nearly match.
LETTERS = st.text("ab\né", max_size=24)
STOPS = st.lists(st.text("ab\né", min_size=1, max_size=5), max_size=4)


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    parts, at = [], 0
    for size in sizes:
        parts.append(ids[at : at + size])
        at += size
    return [*parts, ids[at:]]


def run(stream: TextStream, parts: list[list[int]]) -> tuple[str, int, str | None]:
    """Everything sent, the tokens counted, the stop string."""
    pieces = [stream.push(part) for part in parts]
    sent = "".join(piece.text for piece in pieces) + stream.finish()
    assert stream.finish() == ""
    return sent, sum(piece.tokens_used for piece in pieces), stream.stopped


def expect(
    tok: Tokenizer, ids: list[int], stops: list[str], skip: bool, include: bool
) -> tuple[str, int, str | None]:
    """The definition, by brute force: decode every prefix from scratch. Stop strings have no U+FFFD."""
    for used in range(1, len(ids) + 1):
        text = tok.decode(ids[:used], skip)
        found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
        if found:
            at, length, stop = min(found)
            return text[: at + length * include], used, stop
    return tok.decode(ids, skip), len(ids), None


@given(st.lists(ANY_ID, max_size=40), CUTS, st.booleans())
@example([0xF0, 0x9F], [1], True)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_any_tokens_any_cut(tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool) -> None:
    got = run(TextStream(tokenizer, skip_special_tokens=skip), cut(ids, sizes))
    assert got == (tokenizer.decode(ids, skip), len(ids), None)
    # a stop string that is never there changes nothing
    got = run(TextStream(tokenizer, ["\x00never"], skip_special_tokens=skip), cut(ids, sizes))
    assert got == (tokenizer.decode(ids, skip), len(ids), None)


@given(st.binary(max_size=40), CUTS)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_any_bytes(tokenizer: Tokenizer, data: bytes, sizes: list[int]) -> None:
    single = {tokenizer.token_bytes()[i]: i for i in range(3, 259)}
    ids = [single[bytes([b])] for b in data]
    assert run(TextStream(tokenizer), cut(ids, sizes)) == (data.decode(errors="replace"), len(ids), None)


@given(LETTERS, STOPS, CUTS, st.booleans(), st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_stop_strings(
    tokenizer: Tokenizer, text: str, stops: list[str], sizes: list[int], include: bool, data: st.DataObject
) -> None:
    ids = tokenizer.encode(text, False)
    for _ in range(data.draw(st.integers(0, 3))):  # half characters, special tokens
        ids.insert(data.draw(st.integers(0, len(ids))), data.draw(ANY_ID))
    stream = TextStream(tokenizer, stops, include_stop=include)
    assert run(stream, cut(ids, sizes)) == expect(tokenizer, ids, stops, True, include)


@given(LETTERS, STOPS, CUTS)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_nothing_held_without_reason(text: str, stops: list[str], sizes: list[int]) -> None:
    """After every piece the text held back is the beginning of a stop string, and the longest such end."""
    matcher, seen, sent = StopStrings(stops or ["b"]), "", ""
    stops = stops or ["b"]
    at = 0
    for size in [*sizes, len(text)]:
        piece = text[at : at + size]
        at, seen = at + size, seen + piece
        safe, stop = matcher.push(piece)
        if stop is not None:
            return
        sent += safe
        held = seen[len(sent) :]
        assert sent + held == seen
        ends = [seen[i:] for i in range(len(seen)) if any(s.startswith(seen[i:]) for s in stops)]
        assert held == (ends[0] if ends else "")


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[int]:
    """One token for each text."""
    ids = [i for t in texts for i in range(400) if tokenizer.token_bytes(False)[i] == t.encode()]
    assert len(ids) == len(texts)
    return ids


def test_stop_inside_an_accepted_run(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["ef"])
    assert stream.push(ids_of(tokenizer, "a", "d", "e")) == ("ad", 3, None)
    assert stream.push(ids_of(tokenizer, "f", "x", "y")) == ("", 1, "ef")
    assert stream.push(ids_of(tokenizer, "z")) == ("", 0, "ef")
    assert (stream.stopped, stream.finish()) == ("ef", "")


def test_the_first_in_the_text_wins_then_the_shortest(tokenizer: Tokenizer) -> None:
    (values,) = ids_of(tokenizer, " values")
    for stops in (["lu", "alue", "alu"], ["alu", "alue", "lu"]):
        assert TextStream(tokenizer, stops).push([values]) == (" v", 1, "alu")
        assert TextStream(tokenizer, stops, include_stop=True).push([values]) == (" valu", 1, "alu")


def test_half_characters_wait(tokenizer: Tokenizer) -> None:
    single = {tokenizer.token_bytes()[i]: i for i in range(3, 259)}
    ids = [single[bytes([b])] for b in "🙂".encode()]
    stream = TextStream(tokenizer)
    assert [stream.push([i]).text for i in ids] == ["", "", "", "🙂"]
    assert stream.push(ids[:2]).text == ""
    assert stream.push([single[b"a"]]).text == "\ufffda"  # it can no longer become a character
    assert stream.push(ids[:3]).text == ""
    assert stream.finish() == "\ufffd"


def test_special_tokens_split_no_character(tokenizer: Tokenizer) -> None:
    single = {tokenizer.token_bytes()[i]: i for i in range(3, 259)}
    ids = [single[b"\xc3"], 1, single[b"\xa9"]]
    assert run(TextStream(tokenizer), [[i] for i in ids])[0] == "é" == tokenizer.decode(ids)
    shown = run(TextStream(tokenizer, skip_special_tokens=False), [[i] for i in ids])[0]
    assert shown == tokenizer.decode(ids, False) == "\ufffd<｜end▁of▁sentence｜>\ufffd"


def test_nothing_pushed(tokenizer: Tokenizer) -> None:
    assert run(TextStream(tokenizer, ["x"]), []) == ("", 0, None)
    assert TextStream(tokenizer).push([]) == ("", 0, None)


def test_empty_stop_string(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="a stop string is empty"):
        TextStream(tokenizer, ["a", ""])


@pytest.mark.timeout(5)
def test_long_near_matches_are_not_quadratic() -> None:
    """A stop string that nearly matches for 20,000 characters, beside one that is never held."""
    matcher = StopStrings(["a" * 10_000 + "b", "b"])
    sent = sum(len(matcher.push("a")[0]) for _ in range(20_000))
    assert sent == 10_000
    assert matcher.rest() == "a" * 10_000


def test_special_tokens_that_are_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<｜User｜>b", add_special_tokens=True)
    for shown, text in ((frozenset[str](), "ab"), (frozenset({"<｜User｜>", "<none>"}), "a<｜User｜>b")):
        stream = TextStream(tokenizer, shown=shown)
        assert stream.push(ids).text + stream.finish() == text


class AfterTheBracket:
    """Ends a text after its first bracket."""

    def find(self, text: str) -> tuple[int, str | None]:
        at = text.find(")") + 1
        return (at, "bracket") if at else (len(text), None)


@pytest.mark.parametrize(
    ("text", "stop", "said", "stopped"),
    [
        ("f(x) and", [], "f(x)", "bracket"),
        ("f(x) and", ["(x"], "f", "(x"),
        ("f(x) and", ["x) "], "f(x)", "bracket"),
        ("f(x) and", ["x)"], "f(", "x)"),
        ("f and", ["q"], "f and", None),
    ],
)
def test_one_more_end(text: str, stop: list[str], said: str, stopped: str | None) -> None:
    tokenizer = Tokenizer.from_folder(model_folder("nextn-tiny"))
    stream = TextStream(tokenizer, stop, ends=AfterTheBracket())
    pieces = [stream.push([token]) for token in tokenizer.encode(text, add_special_tokens=False)]
    assert "".join(piece.text for piece in pieces) + stream.finish() == said
    assert pieces[-1].stopped == stopped
