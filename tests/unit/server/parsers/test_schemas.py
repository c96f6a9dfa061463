"""What a schema says of an argument: written as text or as JSON?"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from support.hostile_json import json_values

from nextn.server.parsers.schemas import kind_of

STRING, NULL, NUMBER = ({"type": name} for name in ("string", "null", "number"))


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        (STRING, "text"),
        (NUMBER, "json"),
        (NULL, "json"),
        ({"type": ["string", "null"]}, "nullable"),
        ({"anyOf": [STRING, NULL]}, "nullable"),
        ({"oneOf": [NUMBER, NULL]}, "json"),
        ({"type": ["string", "number"]}, "free"),
        ({"anyOf": [STRING, {}]}, "unknown"),
        ({"enum": ["a", "b"]}, "text"),
        ({"enum": ["a", None]}, "nullable"),
        ({"enum": [1, True]}, "json"),
        ({"const": "a"}, "text"),
        ({"allOf": [{"description": "x"}, STRING]}, "text"),
        ({"$ref": "#/$defs/a~1b"}, "text"),
        ({"$ref": "#/$defs/loop"}, "unknown"),
        ({"$ref": "#/$defs/none"}, "unknown"),
        ({"$ref": "other.json"}, "unknown"),
        ({"type": "varchar"}, "unknown"),
        ({"type": [["string"]]}, "unknown"),
        ({"type": [{}]}, "unknown"),
        ({"type": {"string": 1}}, "unknown"),
        ({}, "unknown"),
        (True, "unknown"),
    ],
)
def test_kinds(argument: object, kind: str) -> None:
    schema = {"properties": {"x": argument}, "$defs": {"a/b": STRING, "loop": {"$ref": "#/$defs/loop"}}}
    assert kind_of(schema, "x", "unknown") == kind  # type: ignore[arg-type]


def test_where_arguments_are_named() -> None:
    inner = {"properties": {"x": STRING}}
    for schema in (
        inner,
        {"allOf": [{}, inner]},
        {"anyOf": [inner]},
        {"$ref": "#/$defs/i", "$defs": {"i": inner}},
    ):
        assert kind_of(schema, "x", "free") == "text"
        assert kind_of(schema, "y", "free") == "free"
    assert kind_of(None, "x", "free") == "free"


@pytest.mark.parametrize("word", ["anyOf", "allOf"])
def test_schemas_that_lead_back_to_themselves_end(word: str) -> None:
    around = {"properties": {"x": {word: [{"$ref": "#/properties/x"}] * 8}}}
    assert kind_of(around, "x", "free") == "free"
    down = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(12)}
    assert kind_of({"properties": {"x": down["d0"]}, "$defs": down}, "x", "free") == "free"
    many = {word: [{"properties": {"y": STRING}}] * 5000 + [{"properties": {"x": STRING}}]}
    assert kind_of(many, "x", "free") == "free"


@given(json_values)
def test_any_schema(schema: Any) -> None:
    assert kind_of(schema, "x", "free") in ("text", "nullable", "json", "free")
    assert kind_of({"properties": {"x": schema}}, "x", "free") in ("text", "nullable", "json", "free")
