"""The routes as an ASGI application, without a socket."""

from __future__ import annotations

from typing import Any

import pytest

from nextn.config import ServerConfig
from nextn.server.app import make_app
from nextn.server.engine_client import EngineClient
from nextn.server.metrics import Metrics
from nextn.server.service import Service


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_client_that_leaves_in_the_middle_of_its_body(path: str) -> None:
    """No error of ours: nothing is raised, so uvicorn logs no traceback."""
    metrics = Metrics(40)
    app = make_app(Service(ServerConfig(), EngineClient(metrics), metrics, None))  # type: ignore[arg-type]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"content-length", b"100")],
    }  # fmt: skip
    come = iter([{"type": "http.request", "body": b'{"pr', "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(come)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 499
