"""A gateway that sends each request to a prefill and a decode server. It is the unmodified sglang-router,
which the extra "gateway" installs."""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

import httpx

from nextn.bench.errors import BenchError
from nextn.bench.logged_process import LoggedProcess

MODULE = "sglang_router"
START_SECONDS = 60.0


def need_gateway() -> None:
    """Raises BenchError if the gateway is not installed."""
    if importlib.util.find_spec(MODULE) is None:
        raise BenchError("this needs a gateway, sglang-router: pip install 'nextn[gateway]'")


class Gateway:
    """A running gateway: the constructor starts it. `prefill`, `decode`: URLs of servers that are ready.
    `port`: the prefill server's bootstrap port."""

    def __init__(self, prefill: str, port: int, decode: str, log: Path) -> None:
        self.port, self.log = free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        words = [
            sys.executable, "-m", f"{MODULE}.launch_router", "--pd-disaggregation", "--policy", "round_robin",
            "--prefill", prefill, str(port), "--decode", decode, "--host", "127.0.0.1",
            "--port", str(self.port), "--prometheus-port", str(free_port()),
        ]  # fmt: skip
        self._process = LoggedProcess(words, log, own_group=True)

    def wait_ready(self) -> None:
        """Raises BenchError if the gateway ends or is not ready within START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while not self._is_ready(client):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise BenchError(f"the gateway is not ready; its log is {self.log}")
                time.sleep(0.1)

    def _is_ready(self, client: httpx.Client) -> bool:
        try:
            return bool(client.get(f"{self.url}/readiness").json()["status"] == "ready")
        except (httpx.HTTPError, ValueError, KeyError):
            return False

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.stop()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
