"""Tracks the HTTP requests that the server works on, for profiles. It tracks them even if no profile runs,
because a profile of a few steps is shorter than most requests."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns as clock

from nextn.trace import TRACE, Arguments

LANE = "HTTP"


@dataclass(slots=True)
class OpenRequest:
    """One HTTP request. Times are from `perf_counter_ns`. first: when the first bytes of the answer were
    sent, 0 before that. status: the answer's HTTP status, 0 before that."""

    name: str
    id: str
    arrived: int
    first: int = 0
    status: int = 0

    def record(self, ended: bool) -> None:
        now, track = clock(), f"request {self.id}"
        first = self.first or now
        about: Arguments = {"request id": self.id, "status": self.status or None, "ended": ended}
        TRACE.add(LANE, self.name, self.arrived, now, about, track)
        TRACE.add(LANE, "until the first byte", self.arrived, first, {}, track)
        if first < now:
            TRACE.add(LANE, "rest of the answer", first, now, {}, track)


class OpenRequests:
    def __init__(self) -> None:
        self._open: dict[int, OpenRequest] = {}  # by identity: clients may send an id twice

    def begin(self, name: str, request_id: str) -> OpenRequest:
        request = OpenRequest(name, request_id, clock())
        self._open[id(request)] = request
        return request

    def end(self, request: OpenRequest) -> None:
        del self._open[id(request)]
        if TRACE.on:
            request.record(True)

    def record(self) -> None:
        """Records all open requests, at the end of a profile."""
        for request in self._open.values():
            request.record(False)
