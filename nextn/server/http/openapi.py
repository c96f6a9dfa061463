"""/openapi.json: describes each route, with the schemas of its body and its answer. The schemas come from the
types that parse bodies and encode answers.

A body's optional field may be null, which means its default. A field that is known but not supported is
listed with the values that the server accepts for it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import PlainTextResponse, Response

from nextn.server.protocol.body import Body
from nextn.server.protocol.errors import ErrorResponse

REF = "#/components/schemas/"


class Document:
    """The OpenAPI document. It collects the types while the routes are made."""

    def __init__(self) -> None:
        self.bodies: dict[str, type[Body]] = {}
        self.answers: list[Any] = [ErrorResponse]

    def route(
        self,
        summary: str,
        body: type[Body] | None = None,
        answer: Any = None,
        stream: bool = False,
        text: bool = False,
        optional: bool = False,
    ) -> dict[str, Any]:
        """Keyword arguments for a route's decorator. answer: the type of a JSON answer; stream: the answer
        may also be an event stream; text: the answer is plain text. With neither `answer` nor `text` the
        answer is empty. optional: the body may be left out."""
        described: dict[str, Any] = {}
        if body is not None:
            self.bodies[body.__name__] = body
            content = as_json({"$ref": REF + body.__name__})
            described["requestBody"] = {"content": content, "required": not optional}
        if answer is not None:
            self.answers.append(answer)
            (schema,), _ = msgspec.json.schema_components([answer], ref_template=f"{REF}{{name}}")
            content = as_json(schema)
            if stream:
                content["text/event-stream"] = {}  # OpenAPI 3.1 has no schema for the events of a stream
            described["responses"] = {"200": {"content": content}}
            return {"summary": summary, "openapi_extra": described}
        kind = PlainTextResponse if text else Response
        return {"summary": summary, "openapi_extra": described, "response_class": kind}

    def serve(self, app: FastAPI) -> None:
        """Makes the app serve this document at its `openapi_url`. It is made at the first request for it."""

        def document() -> dict[str, Any]:
            if app.openapi_schema is None:
                app.openapi_schema = self.made(app)
            return app.openapi_schema

        app.openapi = document  # type: ignore[method-assign]

    def made(self, app: FastAPI) -> dict[str, Any]:
        whole = get_openapi(title=app.title, version=app.version, routes=app.routes)
        error = {"description": "an error", "content": as_json({"$ref": REF + "ErrorResponse"})}
        for operations in whole["paths"].values():
            for operation in operations.values():
                operation["responses"] = {"200": operation["responses"]["200"], "default": error}
        schemas: dict[str, Any] = {}
        for body in self.bodies.values():
            schemas |= body_schemas(body)
        _, answers = msgspec.json.schema_components(self.answers, ref_template=f"{REF}{{name}}")
        assert not schemas.keys() & answers.keys(), "two types of one name"
        whole["components"] = {"schemas": dict(sorted((schemas | answers).items()))}
        return whole


def as_json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def body_schemas(body: type[Body]) -> dict[str, Any]:
    """The schemas of a body and of the types in it, by name."""
    schema = body.model_json_schema(ref_template=f"{REF}{{model}}")
    others: dict[str, Any] = schema.pop("$defs", {})
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if name not in required and {"type": "null"} not in field.get("anyOf", []):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}
    for name, nothing in body.refused.items():
        schema["properties"][name] = {"enum": [*nothing, None], "description": "not supported"}
    return {body.__name__: schema, **others}
