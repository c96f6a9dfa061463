"""Request bodies: from JSON to checked fields, and how it is said what is wrong with them.

A field that is known and cannot be honoured is an error that names it, unless it is at its default. Keys
that nobody knows are tolerated: gateways add their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, get_type_hints

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from nextn.server.errors import bad_request


class Body(BaseModel):
    """What one endpoint takes, to be read with `parse`."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    def check(self) -> None:
        """Raises ApiError for fields that do not go together."""


class KnownKeys(Body):
    """An object in a body that has no keys but its own."""

    model_config = ConfigDict(extra="forbid")


def like(params: type, name: str, prefix: str = "") -> type[KnownKeys]:
    """The fields of a dataclass, under these names, each of which may be left out."""
    fields: dict[str, Any] = {prefix + field: (hint, None) for field, hint in get_type_hints(params).items()}
    return create_model(name, __base__=KnownKeys, **fields)


Kind = TypeVar("Kind", bound=Body)


def parse(body: bytes, kind: type[Kind]) -> Kind:
    """A body from its JSON. Raises ApiError saying what is wrong with which field."""
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as e:
        raise bad_request(f"the body is not valid JSON: {e}") from e
    if not isinstance(data, dict):
        raise bad_request(f"the body must be a JSON object, not {json_type(data)}")
    data = {name: value for name, value in data.items() if value is not None}
    refuse(data, kind.refused)
    try:
        request = kind.model_validate(data)
    except ValidationError as e:
        raise first_error(e) from e
    request.check()
    return request


def part(value: object, kind: type[Kind], name: str) -> Kind:
    """A field of a body, itself an object, read as `kind`. Raises ApiError."""
    try:
        return kind.model_validate(value)
    except ValidationError as e:
        raise first_error(e, name) from e


def refuse(data: Mapping[str, object], table: Mapping[str, tuple[object, ...]], where: str = "") -> None:
    for name in sorted(data.keys() & table.keys()):
        # `is` for booleans, as 1 == True.
        if not any(data[name] == ok and type(data[name]) is type(ok) for ok in table[name]):
            raise bad_request(f"{where}{name} is not supported; leave it out", f"{where}{name}")


def first_error(error: ValidationError, within: str = "") -> Exception:
    first = error.errors(include_url=False, include_context=False)[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
    where = f"{within}{path}".lstrip(".")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return bad_request(f"{where} is missing", where)
    if first["type"] == "extra_forbidden":
        return bad_request(f"{where} is not known; leave it out", where)
    return bad_request(f"{where}: {message} (got {shortened(first['input'])})", where)


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """A body's JSON schema in one piece, to stand within another."""
    schema = kind.model_json_schema()
    types = schema.pop("$defs", {})

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return [whole(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return whole(types[part["$ref"].rpartition("/")[2]])
        return {name: whole(each) for name, each in part.items()}

    inline: dict[str, Any] = whole(schema)
    return inline


def json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def shortened(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
