"""What a function's JSON schema says of one argument that is written as text, not as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

# text: a string as it is. nullable: one, or null. json: no string. free: a string or something else.
Kind = Literal["text", "nullable", "json", "free"]

DEPTH = 16  # links and combinations that are followed
TYPES = ("string", "null", "boolean", "integer", "number", "array", "object")


def kind_of(parameters: object, name: str, unknown: Kind) -> Kind:
    """`unknown`: of an argument of which the schema says no type.

    >>> kind_of({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, "a", "free")
    'nullable'
    """
    types: set[str] | None = None
    for argument in arguments(parameters, parameters, name):
        types = types_of(argument, parameters)
        if types is not None:
            break
    if types is None:
        return unknown
    if "string" not in types:
        return "json"
    others = types - {"string"}
    return "text" if not others else "nullable" if others == {"null"} else "free"


def arguments(schema: object, root: object, name: str, depth: int = DEPTH) -> Iterator[object]:
    """What the schema says of the argument, in it and in the schemas that it combines."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping) or not depth:
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    for part in combined(schema, "allOf", "anyOf", "oneOf"):
        yield from arguments(part, root, name, depth - 1)


def types_of(schema: object, root: object, depth: int = DEPTH) -> set[str] | None:
    """The JSON types that a value may have; None: the schema does not say."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping) or not depth:
        return None
    given = schema.get("type")
    if given is not None:
        names = {given} if isinstance(given, str) else set(given) if isinstance(given, list) else set()
        return names if names and names <= set(TYPES) else None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return {type_of(value) for value in values}
    alternatives = [types_of(part, root, depth - 1) for part in combined(schema, "anyOf", "oneOf")]
    if alternatives:
        known = [types for types in alternatives if types is not None]
        return set().union(*known) if len(known) == len(alternatives) else None
    for part in combined(schema, "allOf"):
        types = types_of(part, root, depth - 1)
        if types is not None:
            return types
    return None


def combined(schema: Mapping[str, Any], *words: str) -> Iterator[object]:
    for word in words:
        parts = schema.get(word)
        yield from parts if isinstance(parts, list) else ()


def followed(schema: object, root: object) -> object:
    """What a link within the same schema leads to; None if it leads nowhere."""
    for _ in range(DEPTH):
        link = schema.get("$ref") if isinstance(schema, Mapping) else None
        if link is None:
            return schema
        if not isinstance(link, str) or not link.startswith("#"):
            return None
        schema = root
        for word in link.removeprefix("#").split("/")[1:]:
            name = word.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return None


def type_of(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")
