"""Finds the type of one argument in a function's JSON schema, for formats that write values as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

# text: a string. nullable: a string or null. json: not a string. free: a string or another type.
Kind = Literal["text", "nullable", "json", "free"]

DEPTH = 16  # nested links and combinations that the search follows
MOST = 256  # schemas that the search visits for one argument, since combinations may be circular
TYPES = ("string", "null", "boolean", "integer", "number", "array", "object")


def kind_of(parameters: object, name: str, unknown: Kind) -> Kind:
    """The kind of the argument `name`. unknown: the result if the schema has no type for the argument.

    >>> kind_of({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, "a", "free")
    'nullable'
    """
    search, types = _Search(parameters), None
    for argument in search.arguments(parameters, name):
        types = search.types_of(argument)
        if types is not None:
            break
    if types is None:
        return unknown
    if "string" not in types:
        return "json"
    others = types - {"string"}
    return "text" if not others else "nullable" if others == {"null"} else "free"


class _Search:
    """The search for one argument in one schema."""

    def __init__(self, root: object) -> None:
        self._root, self._left = root, MOST

    def arguments(self, schema: object, name: str, depth: int = DEPTH) -> Iterator[object]:
        """Yields the argument's schemas: in `schema` itself, and in the schemas that it combines."""
        whole = self._next(schema, depth)
        if whole is None:
            return
        properties = whole.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            yield properties[name]
        for part in combined(whole, "allOf", "anyOf", "oneOf"):
            yield from self.arguments(part, name, depth - 1)

    def types_of(self, schema: object, depth: int = DEPTH) -> set[str] | None:
        """The JSON types that a value may have. None if the schema does not restrict them."""
        whole = self._next(schema, depth)
        if whole is None:
            return None
        given = whole.get("type")
        if given is not None:
            names = [given] if isinstance(given, str) else given
            known = isinstance(names, list) and names and all(name in TYPES for name in names)
            return set(names) if known else None
        values = [whole["const"]] if "const" in whole else whole.get("enum")
        if isinstance(values, list) and values:
            return {type_of(value) for value in values}
        found: set[str] = set()
        for part in (alternatives := list(combined(whole, "anyOf", "oneOf"))):
            types = self.types_of(part, depth - 1)
            if types is None:
                return None
            found |= types
        if alternatives:
            return found
        for part in combined(whole, "allOf"):
            types = self.types_of(part, depth - 1)
            if types is not None:
                return types
        return None

    def _next(self, schema: object, depth: int) -> Mapping[str, Any] | None:
        """The schema, or the schema that it links to. None if there is none, or a limit of the search is
        reached."""
        self._left -= 1
        found = resolve_ref(schema, self._root) if self._left >= 0 and depth else None
        return found if isinstance(found, Mapping) else None


def combined(schema: Mapping[str, Any], *words: str) -> Iterator[object]:
    for word in words:
        parts = schema.get(word)
        yield from parts if isinstance(parts, list) else ()


def resolve_ref(schema: object, root: object) -> object:
    """Follows links ($ref) inside the schema `root`. Returns None if a link leads nowhere, or out of it."""
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
