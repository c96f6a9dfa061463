"""Rooms that were asked for before they were offered, and those that ended before they were asked for."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from nextn.disaggregation.connection import Connection
from nextn.disaggregation.messages import Want

ENDED_ROOMS = 4096  # of which it is remembered why they ended
AGAIN = 1.0  # seconds in which such a room may be offered again, by a client that tries again
EARLY = 4096  # rooms at a time


class Early(NamedTuple):
    connection: Connection
    want: Want
    until: float


class EarlyRooms:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._waiting: dict[int, Early] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, connection: Connection, want: Want) -> str | None:
        """Until the room is offered. Returns why not, or None."""
        if want.room in self._waiting:
            return f"bootstrap room {want.room} was asked for twice"
        if len(self._waiting) >= EARLY:
            return "too many unknown rooms were asked for"
        seconds = min(self._timeout, AGAIN) if want.room in self._ended else self._timeout
        self._waiting[want.room] = Early(connection, want, time.monotonic() + seconds)
        return None

    def offered(self, room: int) -> Early | None:
        """Who waits for it."""
        self._ended.pop(room, None)
        return self._waiting.pop(room, None)

    def ended(self, room: int, why: str) -> None:
        self._ended[room] = why
        while len(self._ended) > ENDED_ROOMS:
            self._ended.popitem(last=False)

    def forget(self, connection: Connection, transfer: int | None = None) -> None:
        """transfer: None for all of the connection."""
        for room, (owner, want, _) in list(self._waiting.items()):
            if owner is connection and transfer in (None, want.transfer):
                del self._waiting[room]

    def too_late(self, now: float) -> list[tuple[Early, str]]:
        """Those that have waited for too long, and what they are told."""
        late = [each for each in self._waiting.values() if now > each.until]
        for each in late:
            del self._waiting[each.want.room]
        return [(each, self._ended.get(each.want.room, _unknown(each.want.room))) for each in late]

    def clear(self) -> None:
        self._waiting.clear()


def _unknown(room: int) -> str:
    return f"bootstrap room {room} is unknown"
