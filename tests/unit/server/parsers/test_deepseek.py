"""DeepSeek's two formats: well-formed calls, broken ones, in all pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tool_calls import joined, pieces_of, read
from support.tool_calls import written as written_call

from nextn.server.parsers.answer import AnswerFormat, AnswerParser
from nextn.server.parsers.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, MARKS, SEPARATOR
from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import parser as make_parser


def written(name: str, arguments: str, parser: str) -> str:
    return written_call(parser, (name, json.loads(arguments)))


NAMES = ["deepseekv3", "deepseekv31"]


values = st.text(alphabet="ab`<｜\n\"'{} é", max_size=12)
calls = st.lists(
    st.tuples(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.dictionaries(values, values, max_size=2)),
    max_size=3,
)


@given(calls, st.sampled_from(NAMES), st.sampled_from(["", "I look.\n\n"]), st.booleans(), st.data())
def test_calls(
    asked: list[tuple[str, dict[str, str]]], name: str, before: str, marks: bool, data: st.DataObject
) -> None:
    """With the outer marks and without, the last of them missing too."""
    text = before
    if asked:
        between = "\n" if name == "deepseekv3" else ""
        text += CALLS_BEGIN * marks
        text += between.join(written(f, json.dumps(a, ensure_ascii=False), name) for f, a in asked)
        text += CALLS_END * data.draw(st.booleans())
    parts = read(pieces_of(text, data), name)
    assert "".join(p.text for p in parts if p.kind == "content") == before
    got = [p for p in parts if p.kind != "content"]
    assert [p.text for p in got[::2]] == [f for f, _ in asked]
    assert [json.loads(p.text) for p in got[1::2]] == [a for _, a in asked]
    assert [p.call for p in got] == [i for i in range(len(asked)) for _ in range(2)]


pieces = st.sampled_from(
    [*MARKS, "function", "f", "\n```json\n", "\n```", "```", "{", '"a"', "}", "\n", " ", "<｜tool", "x"]
)


def bare(text: str) -> str:
    """Without everything that only marks a call, and without blanks."""
    for mark in (*MARKS, "function", "```json", "```"):
        text = text.replace(mark, "")
    return "".join(text.split())


@given(st.lists(pieces, max_size=14).map("".join), st.sampled_from(NAMES), st.data())
def test_cuts_change_nothing_and_nothing_is_lost(text: str, name: str, data: st.DataObject) -> None:
    whole = read([text], name)
    assert read(pieces_of(text, data), name) == whole
    assert bare("".join(part.text for part in whole)) == bare(text)
    if CALL_BEGIN not in text:
        assert all(part.kind == "content" for part in whole)


HEAD = f"{CALL_BEGIN}function{SEPARATOR}f\n```json\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{CALLS_BEGIN} no", [Part("content", f"{CALLS_BEGIN} no")]),
        (f"{CALL_BEGIN}function", [Part("content", f"{CALL_BEGIN}function")]),
        (f"{CALL_BEGIN}x{SEPARATOR}f\n```json\n", [Part("content", f"{CALL_BEGIN}x{SEPARATOR}f\n```json\n")]),
        (f"a{CALL_END}", [Part("content", f"a{CALL_END}")]),
        (HEAD + "{\n``", [Part("call", "f"), Part("arguments", "{\n``")]),
        (HEAD + "{}\n```", [Part("call", "f"), Part("arguments", "{}")]),
        (
            HEAD + f"{{}}```{CALLS_END} and",
            [Part("call", "f"), Part("arguments", "{}"), Part("content", " and")],
        ),
        (written("f", "{}", "deepseekv3") + "\n", [Part("call", "f"), Part("arguments", "{}")]),
        (
            written("f", "{}", "deepseekv3") + " so",
            [Part("call", "f"), Part("arguments", "{}"), Part("content", " so")],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_broken_and_unfinished(text: str, parts: list[Part]) -> None:
    assert read([text], "deepseekv3") == parts


def test_arguments_go_out_as_they_come() -> None:
    parser = make_parser("deepseekv31")
    assert parser.push(f"{CALL_BEGIN}f{SEPARATOR}") == [Part("call", "f")]
    assert parser.push('{"a": ') == [Part("arguments", '{"a": ')]
    assert parser.push("1}<｜tool") == [Part("arguments", "1}")]


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n"]), max_size=4).map("".join), st.data())
def test_reasoning_first_then_calls(thought: str, data: st.DataObject) -> None:
    """A call is looked for in the content only."""
    call = written("f", "{}", "deepseekv31")
    answer_format = AnswerFormat("deepseekv31", reasoning=True)
    closed = "</think>" in thought.removeprefix("<think>")

    def whole(cut: list[str]) -> list[Part]:
        parser = AnswerParser(answer_format)
        return joined([part for piece in cut for part in parser.push(piece)] + parser.finish())

    text = thought + call
    parts = whole(pieces_of(text, data))
    assert parts == whole([text])
    assert (Part("call", "f") in parts) is closed
    assert AnswerFormat(reasoning=False).markers < answer_format.markers
