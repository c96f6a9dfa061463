"""--api-key: the server accepts only requests with the key. Health and metrics stay open, because probes and
scrapers have no key. The web page's files stay open too, because users type the key in there."""

from __future__ import annotations

import hashlib
import hmac

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nextn.server.http.static import PATHS
from nextn.server.protocol.errors import ApiError, bad_request

OPEN = frozenset({"/health", "/livez", "/readyz", "/metrics"}) | PATHS.keys()
SCHEME = b"bearer "


class ApiKey:
    """ASGI middleware: answers 401 to a request without the key, and 400 to one with two. It compares
    digests, so that the time of a comparison reveals nothing about the key, not even its length."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app, self.digest = app, digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self.refusal(scope) if scope["type"] == "http" else None
        if error is not None:
            response = Response(error.body, error.status, error.headers, "application/json")
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def refusal(self, scope: Scope) -> ApiError | None:
        if scope["path"] in OPEN:
            return None
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:
            # A proxy before this server could check a different one of the headers.
            return bad_request(f"the request has {len(given)} Authorization headers; send one")
        if given and self.is_key(given[0]):
            return None
        return ApiError(
            401,
            "a valid API key is needed: Authorization: Bearer <key>",
            "authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def is_key(self, given: bytes) -> bool:
        is_bearer = given[: len(SCHEME)].lower() == SCHEME
        return is_bearer and hmac.compare_digest(digest(given[len(SCHEME) :].strip()), self.digest)


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
