"""JSON by a schema ends: a weak model cannot fill its answer with whitespace, unless an option lets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from nextn import LLM, SamplingParams
from nextn.constraint import Constraint
from nextn.server.prompts.tool_grammar import call_grammar

PROMPTS = ["A colour?", "Give me a JSON object for a user", "def main(argv):\n", "{"]
SCHEMAS: list[dict[str, Any]] = [
    {
        "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "maximum": 99}},
        "required": ["colour", "n"],
    },
    {
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["name", "ok", "tags"],
    },
    {
        "properties": {"p": {"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"]}},
        "required": ["p"],
    },
]
OBJECTS = [{"type": "object", "additionalProperties": False, **schema} for schema in SCHEMAS]
OBJECTS[2]["properties"]["p"]["additionalProperties"] = False


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def engine(request: pytest.FixtureRequest) -> Callable[[bool], LLM]:
    pytest.importorskip(request.param)
    made: dict[bool, LLM] = {}

    def of(any_whitespace: bool) -> LLM:
        if any_whitespace not in made:
            made[any_whitespace] = LLM(
                threads=1, grammar_backend=request.param, constrained_json_any_whitespace=any_whitespace
            )
        return made[any_whitespace]

    return of


def greedy(constraint: Constraint, max_tokens: int = 80) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, constraint=constraint)


@pytest.mark.parametrize("schema", [*OBJECTS, {"type": "object"}], ids=range(4))
def test_closed_json(engine: Callable[[bool], LLM], schema: dict[str, Any]) -> None:
    params = greedy(Constraint("json_schema", json.dumps(schema)))
    for done in engine(False).generate(PROMPTS, params):
        assert done.finish_reason == "stop", done.text
        jsonschema.validate(json.loads(done.text), schema)


def test_any_whitespace(engine: Callable[[bool], LLM]) -> None:
    """What the option lets the embedded model do, and why it is not the default."""
    params = greedy(Constraint("json_schema", json.dumps(OBJECTS[1])))
    done = engine(True).generate(PROMPTS, params)
    assert any(each.finish_reason == "length" and each.text.endswith(" " * 20) for each in done)


def test_arguments_of_a_call(engine: Callable[[bool], LLM]) -> None:
    tools = [{"function": {"name": "f", "parameters": OBJECTS[0]}}]
    params = greedy(call_grammar("deepseekv31", tools, parallel=False), 240)  # its marks are many tokens
    (done,) = engine(False).generate("A colour?", params)
    assert done.finish_reason == "stop", done.text
    _, _, rest = done.text.partition("f<｜tool▁sep｜>")
    jsonschema.validate(json.loads(rest.partition("<｜tool▁call▁end｜>")[0]), OBJECTS[0])
