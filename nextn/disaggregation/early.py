"""Rooms that a sink asked for before they were offered, and the reasons why recent rooms ended.

A room is the number by which both servers know a request."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from nextn.disaggregation.connection import Connection
from nextn.disaggregation.messages import Want

ENDED_ROOMS = 4096  # the reasons kept, at most
AGAIN = 1.0  # seconds to wait for a room that has ended: a client that tries again may offer it again
EARLY = 4096  # unknown rooms that sinks wait for, at most


@dataclass(slots=True)
class Early:
    connection: Connection
    want: Want
    until: float
    have_pages: int | None = None  # None: the sink is not ready for pages yet


class EarlyRooms:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._waiting: dict[int, Early] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, connection: Connection, want: Want) -> str | None:
        """Keeps the question until the room is offered. Returns the error if it is not kept, else None."""
        if want.room in self._waiting:
            return f"bootstrap room {want.room} was requested twice"
        if len(self._waiting) >= EARLY:
            return "too many unknown bootstrap rooms were requested"
        seconds = min(self._timeout, AGAIN) if want.room in self._ended else self._timeout
        self._waiting[want.room] = Early(connection, want, time.monotonic() + seconds)
        return None

    def begin(self, connection: Connection, transfer: int, have_pages: int) -> None:
        """The sink is ready for pages of this transfer, as soon as the room is offered."""
        for early in self._waiting.values():
            if early.connection is connection and early.want.transfer == transfer:
                early.have_pages = have_pages
                return

    def offered(self, room: int) -> Early | None:
        """Removes and returns the question for this room, if there is one."""
        self._ended.pop(room, None)
        return self._waiting.pop(room, None)

    def ended(self, room: int, why: str) -> None:
        self._ended[room] = why
        while len(self._ended) > ENDED_ROOMS:
            self._ended.popitem(last=False)

    def forget(self, connection: Connection, transfer: int | None = None) -> None:
        """Drops the questions of a connection. transfer: only this one; None: all."""
        for room, early in list(self._waiting.items()):
            if early.connection is connection and transfer in (None, early.want.transfer):
                del self._waiting[room]

    def too_late(self, now: float) -> list[tuple[Early, str]]:
        """Removes the questions that have waited too long. Returns them with the error for each."""
        late = [each for each in self._waiting.values() if now > each.until]
        for each in late:
            del self._waiting[each.want.room]
        return [(each, self._ended.get(each.want.room, _unknown(each.want.room))) for each in late]

    def clear(self) -> None:
        self._waiting.clear()


def _unknown(room: int) -> str:
    return f"bootstrap room {room} is unknown"
