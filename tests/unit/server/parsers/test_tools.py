"""Tool calls in all formats: whatever pieces a text comes in, whatever is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tool_calls import Call, answer, called, joined, pieces_of, read, said, written

from nextn.server.parsers.answer import AnswerFormat, AnswerParser
from nextn.server.parsers.first_call import FirstCall
from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import FORMATS, parser
from nextn.server_config import ServerConfig

NAMES = sorted(FORMATS)
NEW = [name for name in NAMES if not name.startswith("deepseek")]
TAGS = sorted({mark for form in FORMATS.values() for mark in form.marks})
PROPERTIES = {
    "text": {"type": "string"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "count": {"type": "integer"},
    "rate": {"type": "number"},
    "yes": {"type": "boolean"},
    "list": {"type": "array"},
    "object": {"type": "object"},
}
FUNCTIONS = {"look": {"type": "object", "properties": PROPERTIES}, "go_on": None}

# No value holds the mark that ends it: that is what the formats cannot say.
characters = st.text(alphabet="ab`<>｜\n\"'{}[]\\/ é😀\t", max_size=12)
tagged = st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<arg_key>", "a", "<", "\n"]), max_size=4)
strings = characters | tagged.map("".join)
integers, floats = st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | integers | floats | characters,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(characters, inner, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": strings,
        "maybe": st.none() | strings.filter(lambda text: text not in ("null", "None")),
        "count": integers,
        "rate": floats,
        "yes": st.booleans(),
        "list": st.lists(json_values, max_size=3),
        "object": st.dictionaries(characters, json_values, max_size=3),
    },
)
calls = st.lists(st.tuples(st.just("look"), arguments) | st.just(("go_on", {})), max_size=3)


@given(calls, st.sampled_from(NAMES), st.sampled_from(["", "I look."]), st.data())
def test_calls(asked: list[Call], name: str, before: str, data: st.DataObject) -> None:
    """Names, arguments with their types, and the text before."""
    blank = "\n\n" if name in NEW else ""  # what templates write before a call is dropped
    text = before + (blank if asked else "") + answer(name, asked)
    parts = read(pieces_of(text, data), name, FUNCTIONS)
    assert called(parts) == asked
    assert said(parts, "content") == before
    assert [p.call for p in parts if p.kind == "call"] == list(range(len(asked)))


hostile = st.lists(
    st.sampled_from(
        [*TAGS, "f", "look", "\n", " ", "<", ">", "</", '"', "\\", "{", "}", ",", ":", "text", "count",
         '"name"', '"arguments"', '{"name": "f", "arguments": {', "```json\n", "\n```", "function", "5", "é"]
    ),
    max_size=16,
).map("".join)  # fmt: skip


@given(hostile, st.sampled_from(NAMES), st.data())
def test_cuts_change_nothing(text: str, name: str, data: st.DataObject) -> None:
    whole = read([text], name, FUNCTIONS)
    assert read(pieces_of(text, data), name, FUNCTIONS) == whole
    assert read(list(text), name, FUNCTIONS) == whole
    begins = FORMATS[name].reader.BEGINS
    if not any(mark in text for mark in begins):
        assert whole == ([Part("content", text)] if text else [])
    numbers = [part.call for part in whole if part.kind in ("call", "arguments")]
    assert numbers == sorted(numbers)


@given(hostile, st.sampled_from(NAMES))
def test_no_half_mark_is_passed_on(text: str, name: str) -> None:
    """As long as more may come, content never ends in the beginning of a mark at which calls begin."""
    reader, passed = parser(name, FUNCTIONS), ""
    for at, char in enumerate(text, 1):
        passed += said(reader.push(char), "content")
        before = text[:at]
        if any(mark in before for mark in reader.BEGINS):
            break
        beginnings = (mark[:i] for mark in reader.BEGINS for i in range(1, len(mark)))
        held = max((len(each) for each in beginnings if before.endswith(each)), default=0)
        assert before.startswith(passed)
        assert len(passed) <= at - held


words = st.sampled_from(["word", "<tool_call>", "f", "\n", "x y", "<function=", "<arg_key>", "{"])


@given(st.lists(words, max_size=8), st.sampled_from(NEW))
def test_what_is_no_call_is_content(pieces: list[str], name: str) -> None:
    """Every character, but for blanks at the end."""
    text = "".join(pieces)
    parts = read([text], name)
    if all(part.kind == "content" for part in parts):
        assert said(parts, "content") == text


@given(st.data(), st.sampled_from([name for name in NAMES if name != "hermes"]))
def test_no_word_is_lost(data: st.DataObject, name: str) -> None:
    """Between any marks. (Hermes' format drops members of a call that say neither its name nor arguments.)"""
    around = st.sampled_from([*FORMATS[name].marks, "\n", " ", "look", ">", "text"])
    pieces = data.draw(st.lists(around | st.just("word"), max_size=16))
    text = "".join(f"w{i}w" if piece == "word" else piece for i, piece in enumerate(pieces))
    passed = "".join(part.text for part in read([text], name, FUNCTIONS))
    assert all(f"w{i}w" in passed for i, piece in enumerate(pieces) if piece == "word")


@pytest.mark.parametrize("name", NAMES)
def test_little_is_searched_again(name: str) -> None:
    """A step's work is that on what is held, so however long an argument, reading it takes linear time."""
    text = "word <" * 3000
    call = written(name, ("look", {"text": text, "list": [text, {"a": text}]}))
    for whole in (call, call[: len(call) // 6], call[: len(call) // 2], call.replace("word", "\n ")):
        reader = parser(name, FUNCTIONS)
        for i in range(0, len(whole), 5):
            reader.push(whole[i : i + 5])
            assert len(reader._held) < 600


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("junk", ["x", " ", "\n", "<", "\\", '"', "{", "<arg_key>", "<tool_call>"])
def test_endless_junk_after_a_mark(name: str, junk: str) -> None:
    """It is content at last, however it comes."""
    text = FORMATS[name].reader.BEGINS[0] + junk * 6000
    assert read([text], name) == read([text[i : i + 7] for i in range(0, len(text), 7)], name)
    if junk in 'x<\\"{':
        assert read([text], name) == [Part("content", text)]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_call_ends_the_answer(name: str) -> None:
    """Where its own end mark is, not one in a string."""
    asked: list[Call] = [("look", {"text": "</tool_call> a <｜tool▁calls"}), ("go_on", {})]
    thought, whole = f"Or {written(name, asked[0])}?</think>", answer(name, asked)
    first = answer(name, asked[:1])
    for inside in (None, True):
        text = f"{thought if inside else ''}I look.{whole} so"
        search, end = FirstCall(AnswerFormat(name, inside, functions=FUNCTIONS)), 0
        for i in range(0, len(text), 3):
            took, found = search.find(text[i : i + 3])
            end += took
            if found is not None:
                break
        kept = text[:end].removeprefix(thought if inside else "").removeprefix("I look.")
        assert found == "tool_call"
        assert kept == (first.removesuffix("<｜tool▁calls▁end｜>") if name.startswith("deepseek") else first)
        assert called(read([kept], name, FUNCTIONS)) == asked[:1]
    assert FirstCall(AnswerFormat(name)).find("no call") == (7, None)


@pytest.mark.parametrize("name", NEW)
def test_a_call_ends_the_reasoning(name: str) -> None:
    """Where the model forgets </think>, if there are tools and nothing else says where reasoning ends."""
    call = answer(name, [("go_on", {})])
    fields: dict[str, Any] = {"reasoning": True, "call_ends_reasoning": True}

    def parts(text: str, answer_format: AnswerFormat) -> list[Part]:
        reader = AnswerParser(answer_format)
        return joined([part for char in text for part in reader.push(char)] + reader.finish())

    kinds = [part.kind for part in parts(f"Hm.{call}", AnswerFormat(name, **fields))]
    assert kinds == ["reasoning", "call", "arguments"]
    assert parts(f"Hm.{call}", AnswerFormat(name, reasoning=True)) == [Part("reasoning", f"Hm.{call}")]
    assert parts(f"Hm.{call}", AnswerFormat(**fields)) == [Part("reasoning", f"Hm.{call}")]
    assert said(parts(f"Hm.</think>{call}", AnswerFormat(name, **fields)), "reasoning") == "Hm."


def test_the_options_name_all_formats() -> None:
    fields = ServerConfig.__dataclass_fields__["tool_call_parser"].metadata
    assert set(fields["choices"]) == set(FORMATS)
    assert set(fields["words"].values()) <= set(FORMATS)
    rule = r"--tool-call-parser is 'llama': choose from deepseekv3, .*, qwen3_coder"
    with pytest.raises(ValueError, match=rule):
        ServerConfig(tool_call_parser="llama").check()


def test_arguments_are_json_as_openai_sends_it() -> None:
    (_, part) = read([written("glm47", ("look", {"text": "é\n", "count": 5}))], "glm47", FUNCTIONS)
    assert part.text == json.dumps({"text": "é\n", "count": 5}, ensure_ascii=False)
