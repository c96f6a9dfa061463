"""--api-key: what it guards, what stays open, and that it is shown to nobody."""

from __future__ import annotations

import httpx
import pytest
from support.scripted_socket import app_of

from nextn.server.http.auth import OPEN
from nextn.server.http.static import PATHS
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server_config import API_KEY_VARIABLE, ServerConfig

KEY = "sk-test-42"


def asking(config: ServerConfig) -> httpx.AsyncClient:
    app = app_of(config, Metrics(EngineClient()))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


@pytest.mark.parametrize(
    "given",
    [None, "", KEY, "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer é"],
)
async def test_without_the_key(given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    async with asking(ServerConfig(api_key=KEY)) as client:
        for path in ("/v1/models", "/server_info", "/nothing"):
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await client.post("/v1/completions", content=b"{", headers=headers)).status_code == 401


@pytest.mark.parametrize("given", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "])
async def test_with_the_key(given: str) -> None:
    async with asking(ServerConfig(api_key=KEY)) as client:
        assert (await client.get("/v1/models", headers={"Authorization": given})).status_code == 200
        shown = await client.get("/server_info", headers={"Authorization": given})
        assert KEY not in shown.text


@pytest.mark.parametrize("keys", [[KEY, "wrong"], ["wrong", KEY], [KEY, KEY]])
async def test_two_keys(keys: list[str]) -> None:
    headers = [("Authorization", f"Bearer {key}") for key in keys]
    async with asking(ServerConfig(api_key=KEY)) as client:
        answer = await client.get("/v1/models", headers=headers)
        assert answer.status_code == 400
        assert "2 Authorization headers; send one" in answer.json()["error"]["message"]
        assert (await client.get("/livez", headers=headers)).status_code == 200


async def test_probes_and_figures_stay_open() -> None:
    async with asking(ServerConfig(api_key=KEY)) as client:
        statuses = {path: (await client.get(path)).status_code for path in OPEN}
    probes = {"/health": 503, "/readyz": 503, "/livez": 200, "/metrics": 200}  # there is no engine
    assert statuses == {**dict.fromkeys(PATHS, 200), **probes}


async def test_no_key_no_guard() -> None:
    async with asking(ServerConfig()) as client:
        assert (await client.get("/v1/models")).status_code == 200


def test_where_the_key_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerConfig().key is None
    monkeypatch.setenv(API_KEY_VARIABLE, "from-outside")
    assert ServerConfig().key == "from-outside"
    assert ServerConfig(api_key="given").key == "given"
    monkeypatch.setenv(API_KEY_VARIABLE, "")
    assert ServerConfig().key is None


@pytest.mark.parametrize("key", ["", " ", "a\nb", "schlüssel"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ValueError, match="--api-key must be printable"):
        ServerConfig(api_key=key).check()
