"""Fields that ask for structured output: all come down to one constraint, or to an error that names them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from support.hostile_json import json_values

from nextn.constraint import Constraint
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.structured import grammar_for

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON = Constraint("json_schema", json.dumps(SCHEMA))
ANY = Constraint("json_schema", '{"type": "object"}')
STRUCTURES = [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]
TAG = {"type": "structural_tag", "structures": STRUCTURES, "triggers": ["<f>"]}
TAGGED = Constraint("structural_tag", json.dumps(TAG))
LARK = 'start: "a"'

ASKED: list[tuple[dict[str, Any], Constraint | None]] = [
    ({}, None),
    ({"response_format": {"type": "text"}, "regex": None, "structured_outputs": {}}, None),
    ({"response_format": {"type": "json_object"}}, ANY),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, JSON),
    ({"response_format": TAG}, TAGGED),
    ({"json_schema": SCHEMA}, JSON),
    ({"json_schema": json.dumps(SCHEMA)}, JSON),
    ({"regex": "a+"}, Constraint("regex", "a+")),
    ({"ebnf": 'root ::= "a"'}, Constraint("ebnf", 'root ::= "a"')),
    ({"structural_tag": json.dumps(TAG)}, TAGGED),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_regex": "a"}, Constraint("regex", "a")),
    ({"guided_choice": ["a", 'b"']}, Constraint("choice", '["a", "b\\""]')),
    ({"guided_grammar": LARK}, Constraint("lark", LARK)),
    ({"guided_grammar": 'root ::= "a"'}, Constraint("ebnf", 'root ::= "a"')),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"json_object": True}}, ANY),
    ({"structured_outputs": {"json_object": False, "choice": ["x"]}}, Constraint("choice", '["x"]')),
]


@pytest.mark.parametrize(("fields", "constraint"), ASKED, ids=str)
def test_fields(fields: dict[str, Any], constraint: Constraint | None) -> None:
    assert grammar_for(fields) == constraint


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a", "ebnf": "b"}, "regex and ebnf are given; send only one of them"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json and response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type must be text, json_object"),
        ({"response_format": "json"}, "response_format.type must be"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
         "response_format.json_schema.schema must be a JSON schema"),
        ({"json_schema": "{"}, "json_schema is not valid JSON"),
        ({"regex": 3}, "regex must be a string"),
        ({"guided_choice": []}, "guided_choice must be a list of strings"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "x"}},
         "structured_outputs.whitespace_pattern is not supported"),
        ({"structured_outputs": "x"}, "structured_outputs must be an object"),
        ({"structural_tag": {"structures": [{"begin": "<f>"}], "triggers": []}}, "structural_tag must have"),
    ],
    ids=str,
)  # fmt: skip
def test_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as error:
        grammar_for(fields)
    assert error.value.status == 400
    assert json.loads(error.value.body)["error"]["message"].startswith(message)


@given(json_values)
def test_any_value_of_any_field_is_a_constraint_or_a_400(value: object) -> None:
    for name in ("json_schema", "regex", "ebnf", "structural_tag", "guided_choice", "structured_outputs"):
        for fields in ({name: value}, {"response_format": {"type": "json_schema", "json_schema": value}}):
            with contextlib.suppress(ApiError):
                found = grammar_for(fields)
                assert found is None or json.dumps(found.text)
