"""A server whose ranks are actors on two nodes of a Ray cluster: its texts, and what follows when an actor is
killed. Needs the extra: pip install 'nextn[ray]'."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server_process import ServerProcess, until

from nextn.ops.cpu.library import NoLibrary, library

ray = pytest.importorskip("ray", reason="needs the extra: pip install 'nextn[ray]'")

BODY = {"prompt": "def read(path):\n", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
RAY = ("--tp-size", "2", "--distributed-executor-backend", "ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[str]:
    """The address of two nodes with a core each, so that one rank has room on each."""
    from ray.cluster_utils import Cluster

    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def serve(*options: str, **environment: str) -> ServerProcess:
    return ServerProcess(["-m", "nextn", "serve", "--port", "0", "--threads", "1", *options], environment)


def completed(server: ServerProcess) -> Any:
    return httpx.post(server.url + "/v1/completions", json=BODY, timeout=60).json()["choices"]


def actors() -> list[int]:
    """Processes of ranks below this one: Ray's nodes are its children, and they start the actors."""
    parents, found = {}, []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name = (stat.parent / "cmdline").read_bytes()
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name.startswith(b"ray::NextnRank"):
            found.append(int(stat.parent.name))
    return [pid for pid in found if parents[parents[pid]] == os.getpid()]


def test_ranks_on_two_nodes(nodes: str) -> None:
    with serve() as alone:
        text = completed(alone)
    with serve(*RAY, RAY_ADDRESS=nodes) as server:
        assert any("ranks 0 on" in line and "; 1 on" in line for line in server.stderr), server.stderr
        assert completed(server) == text
        (killed,) = actors()
        os.kill(killed, signal.SIGKILL)
        until(lambda: server.metrics()["nextn:engine_restarts_total"] == 1, 60)
        until(lambda: httpx.get(server.url + "/readyz").status_code == 200, 120)
        assert completed(server) == text
        assert killed not in actors()
        server.process.terminate()
        assert server.wait() == 0
        until(lambda: server.session() == [])
    until(lambda: not actors(), 60)


def test_no_room_is_one_error(nodes: str) -> None:
    server = serve(*RAY, "--threads=2", "--dist-timeout", "1", RAY_ADDRESS=nodes)
    assert server.wait(60) == 1
    assert any("Ray found no room in 1 s" in line for line in server.stderr), server.stderr
