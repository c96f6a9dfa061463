"""The format of Hermes and Qwen: a JSON object between marks."""

from __future__ import annotations

import json

import pytest
from support.tool_calls import called, read

from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import parser

F = [Part("call", "f"), Part("arguments", '{"a": 1}')]


@pytest.mark.parametrize(
    "body",
    [
        '\n{"name": "f", "arguments": {"a": 1}}\n',
        '{"name":"f","arguments":{"a": 1}}',
        '{"arguments": {"a": 1}, "name": "f"}',
        ' { "name" : "f" , "parameters" : {"a": 1} } ',
        '{"id": [5, "}"], "name": "f", "arguments": {"a": 1}, "type": "function"}',
        '{"name": "\\u0066", "arguments": {"a": 1}}',
    ],
)
def test_ways_to_write_a_call(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    for pieces in ([text], list(text)):
        assert read(pieces, "hermes") == F


def test_half_a_pair_in_a_name() -> None:
    """It could not be sent."""
    text = '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>'
    assert read([text], "hermes") == [Part("call", "\ufffd"), Part("arguments", "{}")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('<tool_call>{"name": "f"}</tool_call>', [Part("call", "f"), Part("arguments", "{}")]),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', [
            Part("call", "f"), Part("arguments", '"x"')
        ]),
        ('<tool_call>{"name": "f", "arguments": 5}</tool_call>', [Part("call", "f"), Part("arguments", "5")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', F),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', F),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>', [
            *F, Part("content", "}</tool_call>")
        ]),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool', [
            Part("call", "f"), Part("arguments", '{"a": "</tool')
        ]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1</tool_call> so', [
            Part("call", "f"), Part("arguments", '{"a": 1'), Part("content", " so")
        ]),
        ('<tool_call>{"name": "f", "arguments": {"a": <b>1</tool_call>', [
            Part("call", "f"), Part("arguments", '{"a": <b>1')
        ]),
        ("<tool_call>{}</tool_call>", [Part("content", "<tool_call>{}</tool_call>")]),
        ("<tool_call>f\n</tool_call>", [Part("content", "<tool_call>f\n</tool_call>")]),
        ('<tool_call>{"name": 5}</tool_call>', [Part("content", '<tool_call>{"name": 5}</tool_call>')]),
        ('<tool_call>{"name": ""}</tool_call>', [Part("content", '<tool_call>{"name": ""}</tool_call>')]),
        ('<tool_call>{"arguments": {}}</tool_call>', [
            Part("content", '<tool_call>{"arguments": {}}</tool_call>')
        ]),
        ('<tool_call>{"name": "f', [Part("content", '<tool_call>{"name": "f')]),
    ],
    ids=str,
)  # fmt: skip
def test_broken_and_unfinished(text: str, parts: list[Part]) -> None:
    assert read([text], "hermes") == parts
    assert read(list(text), "hermes") == parts


def test_marks_and_brackets_in_strings() -> None:
    arguments = {"a": '</tool_call>{"<tool_call>', "b": ["\\", '"', "}"]}
    text = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    assert called(read([text], "hermes")) == [("f", arguments)]
    assert called(read(list(text), "hermes")) == [("f", arguments)]


def test_arguments_go_out_as_they_come() -> None:
    reader = parser("hermes")
    assert reader.push('<tool_call>\n{"name": "f"') == [Part("call", "f")]
    assert reader.push(', "arguments": {"a": [1') == [Part("arguments", '{"a": [1')]
    assert reader.push("]}}\n<") == [Part("arguments", "]}")]
