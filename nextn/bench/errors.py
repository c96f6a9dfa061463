"""The errors that stop a measurement, or one request of it."""

from __future__ import annotations


class BenchError(Exception):
    """A server that does not come up, or a request that was not answered. The message says which."""


class RequestError(BenchError):
    """One request that failed. `kind` is short, and the same for all that failed in the same way."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
