"""What stops a measurement."""

from __future__ import annotations


class BenchError(Exception):
    """A server that does not come up, or a request that was not answered. The message says which."""
