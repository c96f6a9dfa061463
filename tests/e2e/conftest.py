"""Servers for the end-to-end tests, one per configuration and session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.forked_ranks import watched_ranks
from support.server_process import SCRIPTED, ServerProcess
from support.small_tokenizer import write_small_tokenizer
from support.watched_steps import Watches

StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_tokenizer(tmp_path_factory.mktemp("tokenizer") / "scripted")


@pytest.fixture(scope="session")
def scripted(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    """The scripted engine, as fast as it goes."""
    with scripted_server(tokenizer_folder) as server:
        yield server


@pytest.fixture(scope="session")
def slow(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    """The same with steps of 50 ms, one request at a time, and one that may wait."""
    options = ("--max-running-requests", "1", "--max-queued-requests", "1", "--decode-log-interval", "5")
    with scripted_server(tokenizer_folder, *options, SCRIPT_STEP="0.05") as server:
        yield server


@pytest.fixture(scope="session")
def fake() -> Iterator[ServerProcess]:
    """A real engine on the fake model: every first draft is right, every second three times in four."""
    options = ("--port", "0", "--threads", "1", "--check-integrity", "--kv-cache-tokens", "2048")
    options += ("--speculative-num-steps", "2")
    command = ["-m", "nextn", "serve", "--model-path", "fake:1,0.75", "--served-model-name", "fake", *options]
    with ServerProcess(command) as server:
        yield server


@pytest.fixture(scope="module")
def watches() -> Iterator[Watches]:
    """All ranks are watched, and their processes are forked."""
    with watched_ranks() as found:
        yield found


@pytest.fixture
def start(tokenizer_folder: Path) -> Iterator[StartServer]:
    """Starts scripted servers of the test's own: start(*options, SCRIPT_…="…")."""
    servers: list[ServerProcess] = []

    def start_one(*options: str, **environment: str) -> ServerProcess:
        servers.append(scripted_server(tokenizer_folder, *options, **environment))
        return servers[-1]

    yield start_one
    for server in servers:
        server.kill()


def scripted_server(folder: Path, *options: str, **environment: str) -> ServerProcess:
    return ServerProcess(
        [SCRIPTED, "--port", "0", *options], {"SCRIPT_TOKENIZER": str(folder), **environment}
    )
