"""The page's files, as they are served; tests/e2e/test_page.py opens it in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

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
    kinds["json"] = "application/json"
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


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_scripts_parse(name: str) -> None:
    command = ["node", "--input-type=module", "--check"]
    checked = subprocess.run(command, input=(FOLDER / name).read_bytes(), capture_output=True, timeout=60)
    assert checked.returncode == 0, checked.stderr.decode()


def test_scripts_name_elements_that_are_there() -> None:
    page = (FOLDER / "index.html").read_text()
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    for name in FILES:
        if name.endswith(".js"):
            text = (FOLDER / name).read_text()
            asked = set(re.findall(r'(?:\bat|getElementById)\("([^"]+)"\)', text))
            assert asked <= ids, name
    assert set(re.findall(r'(?:aria-controls|aria-labelledby|aria-describedby|for)="([^"]+)"', page)) <= ids


def test_the_example_is_one_text_with_drafts_and_without() -> None:
    """Recorded by tests/page_example.py."""
    example = json.loads((FOLDER / "example.json").read_text(encoding="utf-8"))
    choices = [answer["choices"][0] for answer in example["answers"]]
    assert choices[0]["text"] == choices[1]["text"]
    assert example["prompt"] in presets_of((FOLDER / "presets.js").read_text())
    for choice, num_steps in zip(choices, (example["num_steps"], 0), strict=True):
        assert "".join(text for text, _ in choice["draft_depths"]) == choice["text"]
        steps = choice["draft_steps"]
        assert sum(step["tokens"] for step in steps) == len(choice["draft_depths"])
        times = [step["seconds"] for step in steps]
        assert times == sorted(times)
        assert max(len(step["drafts"]) for step in steps) == num_steps
        at = 0
        for step in steps:
            depths = [depth for _, depth in choice["draft_depths"][at : at + step["tokens"]]]
            assert [depth for depth in depths if depth] == [i + 1 for i in step["accepted"]][: len(depths)]
            at += step["tokens"]
    assert any(len(step["accepted"]) < len(step["drafts"]) for step in choices[0]["draft_steps"])
    tokens = sum(step["tokens"] for step in choices[0]["draft_steps"][1:])
    length = example["answers"][0]["usage"]["spec_details"]["accept_length"]
    assert tokens / (len(choices[0]["draft_steps"]) - 1) == pytest.approx(length, abs=0.01)


def presets_of(script: str) -> list[str]:
    texts = re.findall(r"""^  \["[^"]+", (?:'(.*)'|"(.*)")\],$""", script, re.MULTILINE)
    return [(a or b).encode().decode("unicode_escape") for a, b in texts]
