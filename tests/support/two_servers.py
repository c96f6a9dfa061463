"""A prefill and a decode server, and a client that sends requests to both, as a gateway for SGLang does."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from support.nodes import free_address
from support.server_process import ServerProcess, check_ended
from support.two_replicas import SERVE

Words = Sequence[str]


class TwoServers:
    def __init__(self, prefill: ServerProcess, decode: ServerProcess, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.prefill, self.decode = prefill, decode
        self.bootstrap = {"bootstrap_host": host, "bootstrap_port": int(port)}
        self.first: httpx.Response | Exception | None = None  # the prefill server's last answer

    def remote(self) -> dict[str, Any]:
        return {**self.bootstrap, "bootstrap_room": random.randrange(2**63)}

    def post(self, path: str, timeout: float = 60, **body: Any) -> httpx.Response:
        """Returns the decode server's answer. The prefill server's answer is read too. /flush_cache goes to
        both."""
        body = body if path == "/flush_cache" else self.remote() | body

        def ask() -> None:
            try:
                self.first = self.prefill.post(path, timeout, **body)
            except httpx.HTTPError as e:
                self.first = e

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        answer = self.decode.post(path, timeout, **body)
        asking.join(timeout)
        assert not asking.is_alive()
        return answer

    def transfers(self) -> dict[str, float]:
        """The decode server's metrics of transfers, added up over replicas."""
        begin = "nextn:transfer_"
        found: dict[str, float] = defaultdict(float)
        for name, value in self.decode.metrics().items():
            if name.startswith(begin):
                found[name[len(begin) :].partition("{")[0]] += value
        return found


@contextmanager
def two_servers(
    both: Words = (), prefill: Words = (), decode: Words = (), serve: Words = SERVE
) -> Iterator[TwoServers]:
    """Both processes are ended at the end."""
    bootstrap = free_address()
    words = [*serve, *both, "--disaggregation-bootstrap-port", bootstrap.rpartition(":")[2]]
    first = ServerProcess([*words, "--disaggregation-mode", "prefill", *prefill])
    second = ServerProcess([*words, "--disaggregation-mode", "decode", *decode])
    try:
        yield TwoServers(first.wait_ready(), second.wait_ready(), bootstrap)
        for server in (second, first):
            if server.process.poll() is None:
                server.process.terminate()
                check_ended(server, 0)
    finally:
        first.kill()
        second.kill()
