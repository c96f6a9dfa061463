"""Parses request bodies from JSON into checked fields. Errors name the wrong field.

A field that is known but not supported is an error, unless it has its default value. Unknown keys are
ignored, because gateways add their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from nextn.server.protocol.errors import PROMPT, ApiError, bad_request, cut

# Limits of one body. The server does nothing else while it parses JSON. A number takes 0.2 us and 40 bytes;
# an object or a list takes ten times as much.
MOST_VALUES, MOST_CONTAINERS = 2**20, 2**17
EMPTY: tuple[object, ...] = ("", [], {})
# The inside of a string; of a very long one, the part that one match may cover
INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,4096}', re.DOTALL)


class Body(BaseModel):
    """The body of one endpoint's requests; `parse` reads it.

    refused: fields that are not supported, with the values that are accepted anyway. elsewhere: fields of
    other endpoints, with the advice to the client."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def misplaced(cls, data: Mapping[str, object]) -> Mapping[str, str]:
        """The part of `elsewhere` that applies to a body with these fields."""
        return cls.elsewhere

    def check(self) -> None:
        """Raises ApiError if fields contradict each other."""

    @property
    def prompt_field(self) -> str:
        """The name of the field with the prompts, for error messages."""
        return PROMPT

    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, each as text or token ids. Raises ApiError if they are malformed."""
        return []


class KnownKeys(Body):
    """An object inside a body, in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


def partial_model(params: type, name: str, prefix: str = "") -> type[KnownKeys]:
    """A class with the fields of the dataclass `params`, all optional. Their names in JSON begin with
    `prefix`."""
    fields: dict[str, Any] = {prefix + field: (hint, None) for field, hint in get_type_hints(params).items()}
    return create_model(name, __base__=KnownKeys, **fields)


Kind = TypeVar("Kind", bound=Body)
Item = TypeVar("Item")
# Reports only the first wrong item. Without this, pydantic collects an error for each of a million items.
ListOf = Annotated[list[Item], Field(fail_fast=True)]


def parse(body: bytes | bytearray, kind: type[Kind]) -> Kind:
    """Parses and checks a body's JSON. Raises ApiError (400) that names the wrong field and the reason."""
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as e:
        raise bad_request(f"the body is not valid JSON: {e}") from e
    if not isinstance(data, dict):
        raise bad_request(f"the body must be a JSON object, not {json_type(data)}")
    data = {name: value for name, value in data.items() if value is not None}
    refuse(data, kind.refused)
    elsewhere = kind.misplaced(data)
    for name in sorted(data.keys() & elsewhere.keys()):
        if data[name] not in EMPTY:
            raise bad_request(f"{name}: {elsewhere[name]}", name)
    try:
        request = kind.model_validate(data)
    except ValidationError as e:
        raise first_error(e) from e
    request.check()
    return request


def check_values(body: bytes | bytearray) -> None:
    """Raises ApiError for JSON with too many values. It does not parse the JSON."""
    if all(count <= most for count, most in zip(counted(body), (MOST_VALUES, MOST_CONTAINERS), strict=True)):
        return  # even with the characters inside strings, which this counts too
    values = containers = 0
    for between in outside_strings(body):
        more = counted(between)
        values, containers = values + more[0], containers + more[1]
        if values > MOST_VALUES or containers > MOST_CONTAINERS:
            raise bad_request(
                f"the body has more than {MOST_VALUES} values, or {MOST_CONTAINERS} lists, objects and keys; "
                "send less at a time"
            )


def counted(part: bytes | bytearray) -> tuple[int, int]:
    """Counts in a piece of JSON: its values (by commas), and its lists, objects and keys."""
    return part.count(b","), part.count(b"[") + part.count(b"{") + part.count(b":")


def outside_strings(body: bytes | bytearray) -> Iterator[bytes | bytearray]:
    end = 0
    while (quote := body.find(b'"', end)) >= 0:
        yield body[end:quote]
        end = end_of_string(body, quote + 1)
    yield body[end:]


def end_of_string(body: bytes | bytearray, at: int) -> int:
    """The position after the closing quotation mark; `at` is inside the string."""
    while True:
        inside = INSIDE.match(body, at)
        assert inside is not None
        if inside.end() == at or body[inside.end() : inside.end() + 1] != b"\\":
            return inside.end() + 1
        at = inside.end()


def parse_object(value: object, kind: type[Kind], name: str) -> Kind:
    """Parses an object inside a body, the field `name`, as `kind`. Raises ApiError (400)."""
    if isinstance(value, dict) and kind.model_config.get("extra") == "forbid":
        unknown = next((key for key in value if key not in kind.model_fields), None)
        if unknown is not None:
            raise not_known(f"{name}.{unknown}")
    try:
        return kind.model_validate(value)
    except ValidationError as e:
        raise first_error(e, name) from e


def refuse(data: Mapping[str, object], table: Mapping[str, tuple[object, ...]], where: str = "") -> None:
    for name in sorted(data.keys() & table.keys()):
        # Types are compared too, because 1 == True.
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
        return not_known(where)
    return bad_request(f"{where}: {message} (got {shortened(first['input'])})", where)


def not_known(where: str) -> ApiError:
    return bad_request(f"{where} is not known; leave it out", where)


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """A body's JSON schema without references, so that it can be part of another schema."""
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
    """The beginning of a value's repr. The rest is never computed, because values may be large."""
    text = ""
    for more in spelled(value, limit):
        text += more
        if len(text) > limit:
            break
    return cut(text, limit)


def spelled(value: object, limit: int) -> Iterator[str]:
    """Yields the repr of a JSON value in pieces."""
    if isinstance(value, str):
        yield repr(value[: limit + 1])
    elif isinstance(value, list):
        yield "["
        for i, item in enumerate(value):
            yield ", " if i else ""
            yield from spelled(item, limit)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for i, (name, item) in enumerate(value.items()):
            yield ", " if i else ""
            yield from spelled(name, limit)
            yield ": "
            yield from spelled(item, limit)
        yield "}"
    else:
        yield repr(value)
