"""The routes as an ASGI application, without a socket."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.scripted_socket import app_of

from nextn.config import model_folder
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_client_that_leaves_in_the_middle_of_its_body(path: str) -> None:
    """No error of ours: nothing is raised, so uvicorn logs no traceback."""
    app = app_of(ServerConfig(), Metrics(EngineClient()))
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


async def test_a_bug_of_ours_is_counted_and_has_an_id() -> None:
    metrics = Metrics(EngineClient())
    app = app_of(ServerConfig(), metrics)

    @app.get("/bug/{number}")
    async def bug(number: int) -> None:
        raise RuntimeError("oh")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answer = await client.get("/bug/5", headers={"x-request-id": "mine"})
        for path in ("/version", "/made-up", "/made-up-too"):
            await client.get(path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert answer.headers["x-request-id"] == "mine"
    counted = {
        tuple(sample.labels.values()): sample.value
        for family in metrics.responses.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert counted == {
        ("/bug/{number}", "GET", "500"): 1, ("/version", "GET", "200"): 1, ("other", "other", "404"): 2,
    }  # fmt: skip


@pytest.mark.parametrize("given", [None, 512])
async def test_the_context_length_while_the_model_is_loaded(given: int | None) -> None:
    """null until the engine says it, which knows the size of its KV pool; the same everywhere."""
    engine = EngineClient()
    app = app_of(ServerConfig(context_length=given), Metrics(engine))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:

        async def said() -> list[int | None]:
            pages = [(await client.get(path)).json() for path in ("/v1/models", "/server_info")]
            return [pages[0]["data"][0]["max_model_len"], pages[1]["max_model_len"]]

        assert await said() == [None, None]
        socket: Any = None
        engine.attach(Ready(258, 1024, 2, {}, EngineStats()), socket)
        assert await said() == [1024, 1024]


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
@pytest.mark.parametrize(
    ("model", "folder"), [("nextn-tiny", str(model_folder("nextn-tiny"))), ("a/b", "a/b")]
)
async def test_tools_find_the_tokenizer(path: str, model: str, folder: str) -> None:
    app = app_of(ServerConfig(model_path=model), Metrics(EngineClient()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        info = (await client.get(path)).json()
        server_info = (await client.get("/server_info")).json()
        (card,) = (await client.get("/v1/models")).json()["data"]
    assert info == {"model_path": folder, "tokenizer_path": folder, "is_generation": True}
    # Where gateways look: sglang-router in the one, smg, which takes the server for vLLM, in the other.
    assert (server_info["model_path"], card["root"]) == (folder, folder)
