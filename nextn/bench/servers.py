"""A helper for the servers that a measurement starts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from nextn.bench.errors import BenchError
from nextn.bench.local_server import LocalServer


@contextlib.contextmanager
def last_lines_on_error(*servers: LocalServer) -> Iterator[None]:
    """On a BenchError, prints the last lines of the logs of `servers` to stderr."""
    try:
        yield
    except BenchError:
        for server in servers:
            print(f"--- last lines of the server {server.name} ({server.log}):", file=sys.stderr)
            print(*server.last_lines(), sep="\n", file=sys.stderr)
        raise
