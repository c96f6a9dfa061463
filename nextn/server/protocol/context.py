"""Context variables that identify the HTTP request of the current task. Log lines, spans and messages to the
engine contain them."""

from __future__ import annotations

from contextvars import ContextVar

client: ContextVar[str] = ContextVar("client", default="")  # the client's end of the connection: "host port"
request_id: ContextVar[str] = ContextVar("request_id", default="")  # X-Request-ID, from the client or new
trace_headers: ContextVar[dict[str, str]] = ContextVar("trace_headers")  # the client's, if spans are sent
