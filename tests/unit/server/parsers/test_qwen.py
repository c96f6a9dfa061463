"""Qwen3-Coder's format: values by the schema, line breaks, forgotten marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tool_calls import called, pieces_of, read, said

from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import parser

SCHEMA = {
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "yes": {"type": "boolean"}}
}
FUNCTIONS = {"f": SCHEMA}


def call(body: str) -> str:
    return f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "value", "read_as"),
    [
        ("text", "\na\n", "a"),
        ("text", "a", "a"),
        ("text", "\n\n", ""),
        ("text", "\n", ""),
        ("text", "", ""),
        ("text", "\n\n a \n\n", "\n a \n"),
        ("text", "\nnull\n", "null"),
        ("text", "\n</tool_call><b></b>\n", "</tool_call><b></b>"),
        ("count", "\n5\n", 5),
        ("count", "\nfive\n", "five"),
        ("count", "\nnull\n", None),
        ("count", "\nNone\n", None),
        ("yes", "\nTrue\n", True),
        ("other", "\n5\n", "5"),
    ],
)
def test_values(key: str, value: str, read_as: object) -> None:
    text = call(f"<parameter={key}>{value}</parameter>\n")
    for pieces in ([text], list(text)):
        assert called(read(pieces, "qwen3_coder", FUNCTIONS)) == [("f", {key: read_as})]


PLAIN = [("f", {"text": "a", "count": 1})]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (call("<parameter=text>\na\n<parameter=count>\n1\n"), ""),
        (call("<parameter=text>\na\n<parameter=count>1</parameter>").removesuffix("</tool_call>"), ""),
        ("Hm <function=f><parameter=text>a</parameter><parameter=count>1</parameter></function> so", "Hm so"),
    ],
)
@given(data=st.data())
def test_forgotten_marks(text: str, content: str, data: st.DataObject) -> None:
    parts = read(pieces_of(text, data), "qwen3_coder", FUNCTIONS)
    assert called(parts) == PLAIN
    assert said(parts, "content") == content


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (call(""), [Part("call", "f"), Part("arguments", "{}")]),
        (call("").replace("f>", "a b>"), [Part("content", call("").replace("f>", "a b>"))]),
        ("<tool_call>\nf", [Part("content", "<tool_call>\nf")]),
        ("<function=f>", [Part("content", "<function=f>")]),
        ("<function=f>x", [Part("content", "<function=f>x")]),
        ("<function=f>\n<parameter=te", [Part("call", "f"), Part("content", "<parameter=te")]),
        ("<function=f>\n<parameter=text>\na\n", [Part("call", "f"), Part("arguments", '{"text": "a\\n')]),
        ("<function=f>\n<parameter=text>\n", [Part("call", "f"), Part("arguments", '{"text": ')]),
        ("<function=f>\n<parameter=text>a</parameter>\n", [
            Part("call", "f"), Part("arguments", '{"text": "a"')
        ]),
        ("<function=f></function>\n<function=g></function>", [
            Part("call", "f"), Part("arguments", "{}"), Part("call", "g", 1), Part("arguments", "{}", 1)
        ]),
        ("<function=f></function> so", [Part("call", "f"), Part("arguments", "{}"), Part("content", " so")]),
    ],
    ids=str,
)  # fmt: skip
def test_broken_and_unfinished(text: str, parts: list[Part]) -> None:
    assert read([text], "qwen3_coder", FUNCTIONS) == parts
    assert read(list(text), "qwen3_coder", FUNCTIONS) == parts


def test_strings_go_out_as_they_come() -> None:
    reader = parser("qwen3_coder", FUNCTIONS)
    assert reader.push("<tool_call>\n<function=f>\n<param") == []
    assert reader.push("eter=text>\nab") == [
        Part("call", "f"), Part("arguments", '{"text": '), Part("arguments", '"ab')
    ]  # fmt: skip
    assert reader.push("c\n") == [Part("arguments", "c")]
    assert reader.push("</parameter>\n</function>") == [Part("arguments", '"'), Part("arguments", "}")]
