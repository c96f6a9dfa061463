"""Structured output in request bodies: OpenAI's `response_format`, and the fields of vLLM and SGLang.

`grammar_for` turns them into one `Constraint`. The engine's process compiles it, and finds errors in it then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nextn.constraint import Constraint
from nextn.server.protocol.errors import bad_request

ANY_OBJECT = {"type": "object"}
# Field -> kind of constraint: SGLang's fields, vLLM's older fields, and those inside `structured_outputs`
SGLANG = {"json_schema": "json_schema", "regex": "regex", "ebnf": "ebnf", "structural_tag": "structural_tag"}
GUIDED = {
    "guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice",
    "guided_grammar": "grammar",
}  # fmt: skip
STRUCTURED_OUTPUTS = {
    "json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar",
    "json_object": "json_object", "structural_tag": "structural_tag",
}  # fmt: skip


def grammar_for(fields: Mapping[str, Any]) -> Constraint | None:
    """The constraint in a body's fields, or None. Raises ApiError (400) if a field is malformed, or if two
    fields have a constraint."""
    asked: list[tuple[str, Constraint]] = []
    for table in (SGLANG, GUIDED):
        asked += _each(fields, table, "")
    inside = fields.get("structured_outputs")
    if inside is not None:
        if not isinstance(inside, dict):
            raise bad_request("structured_outputs must be an object", "structured_outputs")
        unknown = sorted(name for name, value in inside.items() if value and name not in STRUCTURED_OUTPUTS)
        if unknown:
            name = f"structured_outputs.{unknown[0]}"
            raise bad_request(f"{name} is not supported; leave it out", name)
        asked += _each(inside, STRUCTURED_OUTPUTS, "structured_outputs.")
    wanted = response_format(fields.get("response_format"))
    if wanted is not None:
        asked.append(("response_format", wanted))
    if len(asked) > 1:
        names = " and ".join(name for name, _ in asked)
        raise bad_request(f"{names} are given; send only one of them", asked[1][0])
    return asked[0][1] if asked else None


def json_schema(schema: object, name: str = "json_schema") -> Constraint:
    """The constraint for texts that are JSON by this schema. schema: an object, or its JSON. Raises ApiError
    (400) that names the field."""
    if isinstance(schema, str):
        schema = _from_json(schema, name)
    if not isinstance(schema, (dict, bool)):
        raise bad_request(f"{name} must be a JSON schema, an object", name)
    return Constraint("json_schema", _to_json(schema, name))


def response_format(given: object) -> Constraint | None:
    """The constraint in OpenAI's `response_format`, or None. The type `structural_tag` is SGLang's. A
    json_schema is always enforced, even without `strict`. Raises ApiError (400)."""
    if given is None:
        return None
    where = "response_format"
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return json_schema(ANY_OBJECT)
    if isinstance(given, dict) and kind == "json_schema":
        inside = given.get("json_schema")
        if not isinstance(inside, dict) or inside.get("schema") is None:
            raise bad_request(f"{where}.json_schema.schema is missing", where)
        return json_schema(inside["schema"], f"{where}.json_schema.schema")
    if isinstance(given, dict) and kind == "structural_tag":
        return structural_tag(given, where)
    message = f"{where}.type must be text, json_object, json_schema or structural_tag"
    raise bad_request(message, where)


def structural_tag(given: object, name: str) -> Constraint:
    """The constraint in SGLang's structural tag: {"structures": [{"begin", "schema", "end"}],
    "triggers": [...]}, or its JSON. Raises ApiError (400)."""
    tag = _from_json(given, name) if isinstance(given, str) else given
    if isinstance(tag, dict) and {"structures", "triggers"} <= tag.keys():
        structures, triggers = tag["structures"], tag["triggers"]
        whole = isinstance(structures, list) and isinstance(triggers, list)
        if whole and all(isinstance(t, str) for t in triggers) and all(map(_is_structure, structures)):
            tag = {"type": "structural_tag", "structures": structures, "triggers": triggers}
            return Constraint("structural_tag", _to_json(tag, name))
    raise bad_request(f"{name} must have triggers, and structures with begin, schema and end", name)


def _is_structure(given: object) -> bool:
    if not isinstance(given, dict) or not isinstance(given.get("schema", {}), dict):
        return False
    return all(isinstance(given.get(name), str) for name in ("begin", "end"))


def _each(fields: Mapping[str, Any], table: Mapping[str, str], within: str) -> list[tuple[str, Constraint]]:
    found = []
    for field, kind in table.items():
        value, name = fields.get(field), within + field
        if value is None or (kind == "json_object" and value is False):
            continue
        found.append((name, _constraint(kind, value, name)))
    return found


def _constraint(kind: str, value: Any, name: str) -> Constraint:
    if kind == "json_schema":
        return json_schema(value, name)
    if kind == "json_object":
        return json_schema(ANY_OBJECT)
    if kind == "structural_tag":
        return structural_tag(value, name)
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
            raise bad_request(f"{name} must be a list of strings, none of them empty", name)
        return Constraint("choice", json.dumps(value))
    if not isinstance(value, str) or not value:
        raise bad_request(f"{name} must be a string", name)
    if kind == "grammar":  # vLLM accepts both notations
        kind = "ebnf" if "::=" in value else "lark"
    return Constraint(kind, value)


def _to_json(value: object, name: str) -> str:
    try:
        return json.dumps(value)
    except RecursionError as e:  # a value that was parsed may still be too deep to encode
        raise bad_request(f"{name} is nested too deeply", name) from e


def _from_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise bad_request(f"{name} is not valid JSON: {e}", name) from e
