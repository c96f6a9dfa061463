"""Two machines for tests: this one, and a network namespace that is connected by a virtual cable. If
namespaces cannot be made, two addresses of the loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from nextn.config import EngineConfig
from nextn.engine.node import run_node


@contextlib.contextmanager
def ranks_of_other_nodes(config: EngineConfig) -> Iterator[None]:
    """Runs the ranks of all nodes but the first, as on other machines. At the end waits until they have
    ended."""
    others = []
    for node in range(1, config.nnodes):
        there = replace(config, node_rank=node, dist_timeout=60.0)
        others.append(threading.Thread(target=run_node, args=(there,), name=f"node {node}", daemon=True))
        others[-1].start()
    yield
    for other in others:
        other.join(60)
        assert not other.is_alive(), f"{other.name} was not let go"


class Machines(NamedTuple):
    """address: the first machine's, for --dist-init-addr. other: words before a command that run it on the
    second machine."""

    address: str
    other: list[str]


@contextlib.contextmanager
def two_machines() -> Iterator[Machines]:
    name = f"nextn{os.getpid()}"
    end, theirs, net = f"nx{os.getpid()}a", f"nx{os.getpid()}b", f"10.77.{os.getpid() % 250}"
    inside = ["ip", "netns", "exec", name]
    try:
        try:
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", end, "type", "veth", "peer", "name", theirs, "netns", name)
            _run("ip", "addr", "add", f"{net}.1/30", "dev", end)
            _run("ip", "link", "set", end, "up")
            _run(*inside, "ip", "addr", "add", f"{net}.2/30", "dev", theirs)
            _run(*inside, "ip", "link", "set", theirs, "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
            machines = Machines(free_address(f"{net}.1"), inside)
        except (OSError, subprocess.CalledProcessError):
            machines = Machines(free_address("127.0.0.2"), [])
        yield machines
    finally:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _run("ip", "netns", "del", name)


def free_address(host: str = "127.0.0.1") -> str:
    with socket.create_server((host, 0)) as s:
        return f"{host}:{s.getsockname()[1]}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
