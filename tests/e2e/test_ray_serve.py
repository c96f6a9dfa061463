"""examples/deploy/ray_serve.py: a replica on Ray Serve answers as the server in it. Needs ray[serve]."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.server_process import until

pytest.importorskip("ray.serve", reason="needs ray[serve]", exc_type=ImportError)

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
LINES = """
import sys, ray
from ray import serve
from ray_serve import app
ray.init(address="local", num_cpus=2, include_dashboard=False)
serve.start(http_options={"port": int(sys.argv[1])})
serve.run(app({"options": "--kv-cache-tokens 4096 --step-cost-cache off"}), blocking=True)
"""
PROMPT = {"prompt": "def read(path):\n", "temperature": 0}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    paths = os.pathsep.join([str(FOLDER), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", LINES, port], env={**os.environ, "PYTHONPATH": paths}, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: ready(url), 120)
        yield url
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()


def ready(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_answers_and_errors_pass(url: str) -> None:
    body = httpx.post(url + "/v1/completions", json={**PROMPT, "max_tokens": 8}, timeout=60).json()
    assert body["usage"]["completion_tokens"] == 8
    wrong = httpx.post(url + "/v1/completions?a=b", json={**PROMPT, "max_tokens": -1})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")


def test_a_client_that_goes_away_ends_its_stream(url: str) -> None:
    body = {**PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: {")
    until(lambda: "nextn:num_aborted_requests_total 1.0" in httpx.get(url + "/metrics").text, 60)
