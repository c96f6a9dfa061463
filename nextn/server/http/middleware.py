"""ASGI middleware: gives each request an id, keeps its trace headers, counts its answer."""

from __future__ import annotations

import re
import uuid
from time import perf_counter_ns as clock

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.open_requests import OpenRequests
from nextn.server.protocol.context import client, request_id, trace_headers

REQUEST_ID = b"x-request-id"
USABLE = re.compile(rb"[!-~]{1,128}")  # ids go into headers and log lines
DIRECT = "nextn.send"  # key in the scope: a `send` for parts of a body that bypasses the middleware
TRACE = (b"traceparent", b"tracestate")


class RequestId:
    """ASGI middleware: adds X-Request-ID to answers, with the client's id or a new one. It notes each
    request's times in `requests`."""

    def __init__(self, app: ASGIApp, requests: OpenRequests) -> None:
        self.app, self.requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(REQUEST_ID, b"")
        own = given if USABLE.fullmatch(given) else uuid.uuid4().hex.encode()
        request_id.set(own.decode())
        host, port = scope.get("client") or ("", 0)
        client.set(f"{host} {port}")
        request = self.requests.begin(f"{scope['method']} {scope['path']}", own.decode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.first, request.status = clock(), message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (REQUEST_ID, own)]}
            await send(message)

        scope[DIRECT] = send
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self.requests.end(request)


class CountResponses:
    """ASGI middleware: counts answers by route, method and status. All paths without a route count as one
    route, so that clients cannot create new time series."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(scope, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception:
            if not begun:  # Starlette sends the answer to this error, outside all middleware
                self._count(scope, 500)
            raise

    def _count(self, scope: Scope, status: int) -> None:
        endpoint = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if endpoint != "other" else "other"
        self.metrics.responses.labels(endpoint, method, str(status)).inc()


class TraceParent:
    """ASGI middleware: keeps the client's trace headers for the spans of its request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"])
            found = {name.decode(): given[name].decode("latin-1") for name in TRACE if name in given}
            trace_headers.set(found)
        await self.app(scope, receive, send)
