"""Values that are written as text, as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile_json import json_values

from nextn.server.parsers.typed import ArgumentWriter, as_json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (' {"a": 1.0} ', '{"a": 1.0}'),
        ("1" * 5000, "1" * 5000),
        ("1e400", "1e400"),
        ("None", "null"),
        ("('é', 1_000)", '["é", 1000]'),
        ("{1: True}", '{"1": true}'),
        ("{'a': '\\ud83d\\ude00', 'b': None}", '{"a": "😀", "b": null}'),
        ("('\\ud83d',)", '["�"]'),
        ("Infinity", '"Infinity"'),
        ("1e999j", '"1e999j"'),
        ("b'x'", "\"b'x'\""),
        ("f()", '"f()"'),
        ("'\\d'", '"\\\\d"'),
        ("", '""'),
        (" a ", '" a "'),
    ],
)
def test_texts(text: str, said: str) -> None:
    assert as_json(text) == said


@pytest.mark.parametrize("text", ["-" * 7999 + "1", "(" * 7999, "[" * 3999 + "]" * 3999, "1+" * 3999 + "1"])
def test_deep_literals_are_strings(text: str) -> None:
    assert as_json(text) == json.dumps(text)


@given(st.text() | st.text(alphabet="[]{}()'\",:0123e+-.jbrTNaone \n\\_"))
def test_any_text_is_json_at_last(text: str) -> None:
    json.loads(as_json(text))


@given(json_values)
def test_json_stays(value: object) -> None:
    text = json.dumps(value)
    if value == value and "NaN" not in text and "Infinity" not in text:
        assert as_json(text) == text


texts = st.tuples(st.booleans(), st.text(max_size=9))


@given(st.dictionaries(st.text(max_size=4), texts, max_size=4), st.data())
def test_written_in_pieces(arguments: dict[str, tuple[bool, str]], data: st.DataObject) -> None:
    """Strings whole or in pieces, and values that are not strings."""
    properties = {name: {"type": "string" if string else "object"} for name, (string, _) in arguments.items()}
    writer, said = ArgumentWriter({"properties": properties}, "free"), ""
    for name, (_, text) in arguments.items():
        at = data.draw(st.integers(0, len(text)))
        said += writer.key(name) + writer.piece(text[:at]) + writer.piece(text[at:]) + writer.end_value()
    expected = {n: text if string else json.loads(as_json(text)) for n, (string, text) in arguments.items()}
    assert json.loads(said + writer.end()) == expected
