"""What identifies the HTTP request that is being served, wherever its task goes: log lines, spans and the
engine's messages carry it."""

from __future__ import annotations

from contextvars import ContextVar

client: ContextVar[str] = ContextVar("client", default="")  # the connection it came by: "host port"
request_id: ContextVar[str] = ContextVar("request_id", default="")  # X-Request-ID, the client's or made here
trace_headers: ContextVar[dict[str, str]] = ContextVar("trace_headers")  # the client's, where spans are sent
