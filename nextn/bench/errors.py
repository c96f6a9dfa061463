"""The errors that stop a measurement, or one request of it."""

from __future__ import annotations


class BenchError(Exception):
    """A server did not start, or a request was not answered. The message names it."""


class RequestError(BenchError):
    """One request failed. `kind` is short, and the same for all requests that failed in the same way."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
