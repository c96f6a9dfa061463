"""The listening socket: errors speak of what is wrong, the host or the port."""

from __future__ import annotations

import socket

import pytest

from nextn.server.listen import listen
from nextn.server.process.supervisor import StartupError


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "a" * 70 + ".b"])
def test_a_host_that_is_not_here(host: str) -> None:
    with pytest.raises(StartupError, match=f"cannot listen on --host {host}: ") as error:
        listen(host, 0)
    assert "--port" not in str(error.value)
    assert "0.0.0.0" in str(error.value)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartupError, match="; choose another --port"):
            listen("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(StartupError, match="; choose another --disaggregation-bootstrap-port"):
            listen("127.0.0.1", taken.getsockname()[1], "--disaggregation-bootstrap-port")
