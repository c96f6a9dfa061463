"""The page's files, as they are served; tests/e2e/test_page.py opens it in a browser."""

from __future__ import annotations

import re

import httpx
import pytest
from support.scripted_socket import app_of

from nextn.server.http.static import FOLDER
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server_config import ServerConfig

FILES = sorted(path.name for path in FOLDER.iterdir())


async def get(path: str) -> httpx.Response:
    app = app_of(ServerConfig(), Metrics(EngineClient()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        return await client.get(path)


@pytest.mark.parametrize("name", FILES)
async def test_files(name: str) -> None:
    answer = await get("/" if name == "index.html" else f"/page/{name}")
    assert answer.status_code == 200
    assert answer.content == (FOLDER / name).read_bytes()
    kinds = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "html": "text/html"}
    kind = kinds[name.rpartition(".")[2]]
    assert answer.headers["content-type"].split(";")[0] == kind
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/page/", "/page/none.js", "/page/..%2fapp.py", "/page/../app.py", "/page"])
async def test_nothing_else(path: str) -> None:
    assert (await get(path)).status_code == 404


def test_it_needs_no_other_host_and_all_its_files() -> None:
    texts = {name: (FOLDER / name).read_text() for name in FILES}
    for name, text in texts.items():
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], name
        assert "innerHTML" not in text, name  # a text is never markup
        for other in re.findall(r'(?:from|href|src)[= ]"(?:\./|page/)([^"]+)"', text):
            assert other in FILES
    named = " ".join(texts.values())
    assert [name for name in FILES if name != "index.html" and f"/{name}" not in named] == []
