"""Which engine has a room is asked of bootstrap ports, and every question is answered."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest
from support.transfers import Bootstrap

from nextn.disaggregation.lookup import Address, Lookups
from nextn.disaggregation.remote import Remote

Answers = queue.SimpleQueue[tuple[Address | None, str]]


@pytest.fixture
def port() -> Iterator[Bootstrap]:
    made = Bootstrap()
    yield made
    made.close()


def ask(lookups: Lookups, remote: Remote) -> Answers:
    answers: Answers = queue.SimpleQueue()
    lookups.ask(remote, lambda address, error: answers.put((address, error)), lambda: True)
    return answers


def test_a_room_that_is_known_later(port: Bootstrap) -> None:
    lookups = Lookups(30)
    first, second = (ask(lookups, port.remote(room)) for room in (1, 2))
    port.routes[2] = "", 4321  # any host: the bootstrap port's
    assert second.get(timeout=20) == ((socket.AF_INET, ("127.0.0.1", 4321)), "")
    port.routes[1] = "127.0.0.1", 1234
    assert first.get(timeout=20) == ((socket.AF_INET, ("127.0.0.1", 1234)), "")
    lookups.close()


@pytest.mark.parametrize(
    "remote",
    [Remote(1, "", 0), Remote(1, "127.0.0.1", 70_000), Remote(1, "host.invalid", 80), Remote(1, "a\nb", 80),
     Remote(1, "x" * 300, 80), Remote(1, "127.0.0.1", -1), Remote(1, "\0", 80), Remote(1, "ü" * 70, 80)],
)  # fmt: skip
def test_addresses_that_are_none(remote: Remote) -> None:
    lookups = Lookups(0.1)
    address, error = ask(lookups, remote).get(timeout=30)
    assert address is None
    assert "bootstrap port" in error
    lookups.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"rubbish\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
     b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"host":"h","port":99999} ',
     b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 200_000],
)  # fmt: skip
def test_answers_that_are_none(answer: bytes) -> None:
    lookups = Lookups(0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        answers = ask(lookups, Remote(1, "127.0.0.1", server.getsockname()[1]))
        for _ in range(400):
            if not answers.empty():
                break
            try:
                end, _ = server.accept()
            except TimeoutError:
                continue
            with end:
                end.recv(4096)
                end.sendall(answer)
        address, error = answers.get(timeout=20)
    assert address is None
    assert "bootstrap port" in error
    lookups.close()


def test_a_port_that_is_silent_holds_up_no_other(port: Bootstrap) -> None:
    lookups = Lookups(30)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask(lookups, Remote(1, "127.0.0.1", silent.getsockname()[1]))
        port.routes[1] = "127.0.0.1", 1234
        assert ask(lookups, port.remote(1)).get(timeout=20)[0] is not None
    lookups.close()


def test_a_lost_request_is_not_waited_for(port: Bootstrap) -> None:
    port.lost.add(7)
    lookups = Lookups(3600)
    error = "the prefill server has lost the request of bootstrap room 7"
    assert ask(lookups, port.remote(7)).get(timeout=60) == (None, error)
    lookups.close()


def test_a_server_that_is_gone_is_not_waited_for() -> None:
    lookups = Lookups(3600)
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))  # and nobody listens
        found, error = ask(lookups, Remote(7, "127.0.0.1", there.getsockname()[1])).get(timeout=60)
    assert (found, "refused" in error) == (None, True)
    lookups.close()
