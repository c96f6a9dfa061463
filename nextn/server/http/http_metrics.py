"""Counts HTTP answers by route, method and status."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nextn.server.monitoring.metrics import Metrics


class CountResponses:
    """ASGI middleware. Paths without a route count as one, so that nobody can make up series."""

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
            if not begun:  # Starlette answers it, outside of all middleware
                self._count(scope, 500)
            raise

    def _count(self, scope: Scope, status: int) -> None:
        endpoint = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if endpoint != "other" else "other"
        self.metrics.responses.labels(endpoint, method, str(status)).inc()
