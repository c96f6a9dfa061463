"""What bootstrap ports answer, and what becomes of it."""

from __future__ import annotations

import http.server
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from nextn.disaggregation.lookup import Address, Lookups
from nextn.disaggregation.remote import Remote


class Gone(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(410)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gone) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_lost_request_is_not_waited_for(port: int) -> None:
    answers: queue.Queue[tuple[Address | None, str]] = queue.Queue()
    lookups = Lookups(3600.0)
    lookups.ask(Remote(7, "127.0.0.1", port), lambda found, error: answers.put((found, error)), lambda: True)
    assert answers.get(timeout=60) == (None, "the prefill server has lost the request of bootstrap room 7")
    lookups.close()


def test_a_server_that_is_gone_is_not_waited_for() -> None:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))  # and nobody listens
        answers: queue.Queue[tuple[Address | None, str]] = queue.Queue()
        lookups = Lookups(3600.0)
        remote = Remote(7, "127.0.0.1", there.getsockname()[1])
        lookups.ask(remote, lambda found, error: answers.put((found, error)), lambda: True)
        found, error = answers.get(timeout=60)
        assert (found, "refused" in error) == (None, True)
        lookups.close()
