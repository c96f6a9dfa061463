"""A prefill server's bootstrap port, as a process of its own."""

from __future__ import annotations

import os
import signal
import socket

import httpx
import pytest
from support.server_process import ServerProcess, check_ended, until
from support.two_replicas import SERVE

PREFILL = [
    *SERVE, "--disaggregation-mode", "prefill", "--disaggregation-timeout", "1",
    "--disaggregation-bootstrap-port",
]  # fmt: skip
REQUEST = {"text": "hello", "sampling_params": {"max_new_tokens": 9, "n": 2, "stop": "a"}}


def test_a_room_is_asked_for() -> None:
    """Until its engine has died."""
    with ServerProcess([*PREFILL, "0"]) as server, httpx.Client(timeout=30) as http:
        info = http.get(server.url + "/server_info").json()
        assert info["disaggregation_mode"] == "prefill"
        bootstrap = f"http://127.0.0.1:{info['disaggregation_bootstrap_port']}"
        assert any(f"127.0.0.1:{info['disaggregation_bootstrap_port']}" in line for line in server.stdout)
        assert http.get(bootstrap + "/health").text == "OK"
        assert http.get(bootstrap + "/route?bootstrap_room=7").status_code == 404
        body = REQUEST | {"bootstrap_room": 7, "bootstrap_host": "127.0.0.1", "bootstrap_port": None}
        prefilled = http.post(server.url + "/generate", json=body).json()
        assert (prefilled["output_ids"], prefilled["meta_info"]["finish_reason"]["type"]) == ([], "length")
        found = http.get(bootstrap + "/route?bootstrap_room=7").json()
        assert found.pop("port") > 0
        assert found == {"host": "127.0.0.1", "dp_rank": 0, "room": 7}
        plain = http.post(server.url + "/generate", json=REQUEST).json()
        assert len(plain) == 2
        os.kill(server.engine_pid(), signal.SIGKILL)
        route = bootstrap + "/route?bootstrap_room=7"
        until(lambda: http.get(route).status_code != 200)
        until(lambda: http.get(server.url + "/health").status_code == 200)
        assert http.get(route).status_code in (404, 410)
        server.interrupt()
        check_ended(server, 130)
        with pytest.raises(httpx.ConnectError):
            http.get(bootstrap + "/health")


def test_the_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ServerProcess([*PREFILL, str(taken.getsockname()[1])])
        assert server.wait() == 1
    assert any("choose another --disaggregation-bootstrap-port" in line for line in server.stderr)
