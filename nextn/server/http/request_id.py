"""What identifies a request: X-Request-ID, the client's or else one made here, which log lines carry; and the
connection that it came by."""

from __future__ import annotations

import contextvars
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
USABLE = re.compile(rb"[!-~]{1,128}")  # it goes into headers and log lines

client: contextvars.ContextVar[str] = contextvars.ContextVar("client", default="")  # "host port"
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


class RequestId:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER, b"")
        own = given if USABLE.fullmatch(given) else uuid.uuid4().hex.encode()
        request_id.set(own.decode())
        host, port = scope.get("client") or ("", 0)
        client.set(f"{host} {port}")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, own)]}
            await send(message)

        await self.app(scope, receive, send_with_id)
