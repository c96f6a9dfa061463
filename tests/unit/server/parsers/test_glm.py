"""GLM's format: values by the schema, both ways to write it, broken calls."""

from __future__ import annotations

import pytest
from support.tool_calls import called, read, said

from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import parser

# As the models' templates and SGLang's and vLLM's readers have it.
GLM45 = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>北京</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
GLM47 = GLM45.replace("\n", "")
FUNCTIONS = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "my tool": None,
}
CALL = ("get_weather", {"city": "北京", "days": 2})


@pytest.mark.parametrize("name", ["glm45", "glm47"])
@pytest.mark.parametrize("text", [GLM45, GLM47])
def test_either_name_reads_either_way(name: str, text: str) -> None:
    assert called(read([f"So:\n{text}\n{text}\n"], name, FUNCTIONS)) == [CALL, CALL]
    assert said(read([f"So:\n{text}\n{text}\n"], name, FUNCTIONS), "content") == "So:"
    assert said(read([f"{text}\nDone. "], name, FUNCTIONS), "content") == "\nDone. "


@pytest.mark.parametrize(
    ("key", "value", "read_as"),
    [
        ("city", "5", "5"),
        ("city", ' "x" ', ' "x" '),
        ("city", "", ""),
        ("days", " 3 ", 3),
        ("days", "three", "three"),
        ("days", "", ""),
        ("other", "5", 5),
        ("other", "True", True),
        ("other", "{'a': (1, None)}", {"a": [1, None]}),
        ("other", "five", "five"),
        ("other", "{1, 2}", "{1, 2}"),
        ("other", "NaN", "NaN"),
        ("other", "</tool_call>", "</tool_call>"),
    ],
)
def test_values(key: str, value: str, read_as: object) -> None:
    text = f"<tool_call>get_weather<arg_key> {key} </arg_key> <arg_value>{value}</arg_value></tool_call>"
    assert called(read([text], "glm47", FUNCTIONS)) == [("get_weather", {key: read_as})]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<tool_call>f</tool_call>", [Part("call", "f"), Part("arguments", "{}")]),
        ("<tool_call>f\n</tool_call>\n", [Part("call", "f"), Part("arguments", "{}")]),
        ("<tool_call></tool_call>", [Part("content", "<tool_call></tool_call>")]),
        ("<tool_call>a tag</tool_call>", [Part("content", "<tool_call>a tag</tool_call>")]),
        ("<tool_call>my tool</tool_call>", [Part("call", "my tool"), Part("arguments", "{}")]),
        ("\n<tool_call>f", [Part("content", "\n<tool_call>f")]),
        ("a <tool_call>f</tool_call>b", [
            Part("content", "a"), Part("call", "f"), Part("arguments", "{}"), Part("content", "b")
        ]),
        ("<tool_call>f<arg_key>a", [Part("call", "f"), Part("content", "<arg_key>a")]),
        ("<tool_call>f<arg_key>a</arg_key>", [Part("call", "f"), Part("content", "<arg_key>a</arg_key>")]),
        ("<tool_call>f<arg_key>a</arg_key>\n<arg_value>[1,", [
            Part("call", "f"), Part("arguments", '{"a": [1,')
        ]),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>", [
            Part("call", "f"), Part("arguments", '{"a": 1')
        ]),
        ("<tool_call>f<arg_key>a</arg_key></tool_call>", [
            Part("call", "f"), Part("content", "<arg_key>a</arg_key></tool_call>")
        ]),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>{}", [
            Part("call", "f"), Part("arguments", '{"a": 1'), Part("content", "{}")
        ]),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><tool_call>g</tool_call>", [
            Part("call", "f"), Part("arguments", '{"a": 1}'), Part("call", "g", 1), Part("arguments", "{}", 1)
        ]),
    ],
    ids=str,
)  # fmt: skip
def test_broken_and_unfinished(text: str, parts: list[Part]) -> None:
    assert read([text], "glm45", {"my tool": None}) == parts


def test_strings_go_out_as_they_come() -> None:
    reader = parser("glm47", FUNCTIONS)
    assert reader.push("<tool_call>get_weather<arg_key>city</arg_key>") == [Part("call", "get_weather")]
    assert reader.push("<arg_value>Bei") == [Part("arguments", '{"city": '), Part("arguments", '"Bei')]
    assert reader.push('j"</arg') == [Part("arguments", 'j\\"')]
    assert reader.push("_x") == [Part("arguments", "</arg_x")]
    assert reader.push("</arg_value>") == [Part("arguments", '"')]
    assert reader.push("<arg_key>days</arg_key><arg_value>1") == [Part("arguments", ', "days": ')]
    assert reader.push("2") == []
    assert reader.push("</arg_value></tool_call>") == [Part("arguments", "12"), Part("arguments", "}")]


def test_a_string_that_may_be_null() -> None:
    schema = {"f": {"properties": {"a": {"type": ["string", "null"]}}}}
    for text, value in (("null", None), ("None", None), ("nul", "nul"), ("nullify", "nullify"), ("", "")):
        call = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
        for pieces in ([call], list(call)):
            assert called(read(pieces, "glm47", schema)) == [("f", {"a": value})]
    reader = parser("glm47", schema)
    reader.push("<tool_call>f<arg_key>a</arg_key><arg_value>")
    assert reader.push("nu") == []
    assert reader.push("ts") == [Part("arguments", '"nuts')]
