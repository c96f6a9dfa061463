"""--api-key: who may ask. Health and metrics stay open, as probes and scrapers carry no keys, and so do the
files of the page, where the key is typed in."""

from __future__ import annotations

import hashlib
import hmac

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nextn.server.errors import ApiError
from nextn.server.static import PATHS

OPEN = frozenset({"/health", "/livez", "/readyz", "/metrics"}) | PATHS.keys()
SCHEME = b"bearer "


class ApiKey:
    """ASGI middleware: 401 for a request without the key. What it compares are digests, so the time that
    takes tells nothing of the key, not even its length."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app, self.digest = app, digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self.lets_in(scope):
            told = ApiError(
                401,
                "a valid API key is needed: Authorization: Bearer <key>",
                "authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            response = Response(told.body, told.status, told.headers, "application/json")
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def lets_in(self, scope: Scope) -> bool:
        if scope["path"] in OPEN:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        is_bearer = given[: len(SCHEME)].lower() == SCHEME
        return is_bearer and hmac.compare_digest(digest(given[len(SCHEME) :].strip()), self.digest)


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
