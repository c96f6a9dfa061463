"""A server of two ranks: texts as of one process, and what is left when ranks are killed (the short form of
benchmarks/kill_ranks.py; how long it takes is not looked at)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.server_process import ServerProcess, check_ended

from nextn.ops.cpu.library import NoLibrary, library

ROOT = Path(__file__).parents[2]
BODY = {"prompt": "def read(path):\n", "max_tokens": 48, "temperature": 0, "ignore_eos": True}


@pytest.fixture(autouse=True)
def native() -> None:
    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")


def serve(*options: str) -> ServerProcess:
    return ServerProcess(["-m", "nextn", "serve", "--port", "0", "--threads", "1", *options])


def test_two_ranks_serve_the_text_of_one() -> None:
    texts = []
    for size in ("1", "2"):
        with serve("--tp-size", size) as server:
            texts.append(httpx.post(server.url + "/v1/completions", json=BODY, timeout=60).json()["choices"])
            metrics = server.metrics()
            assert metrics["nextn:engine_busy_seconds_total"] > 0
            assert (metrics["nextn:rank_wait_seconds_total"] > 0) == (size == "2")
            assert httpx.get(server.url + "/server_info").json()["tp_size"] == int(size)
            server.process.terminate()
            check_ended(server, 0)
    assert texts[0] == texts[1]


def test_a_size_that_cannot_be_ends_the_start_with_one_error() -> None:
    server = serve("--tp-size", "3")
    assert server.wait(120) == 2
    said = [line for line in server.stderr if "heads cannot be divided" in line]
    assert len(said) == 1, server.stderr
    assert not any("Traceback" in line for line in server.stderr)
    assert server.session() == []


def test_ranks_that_are_killed() -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "kill_ranks.py"), "--kills", "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
