"""The rooms of a prefill server (SGLang's bootstrap rooms). A room says which engine has the request that a
decode server asks for.

A room is opened when its request is sent to an engine. It stays known for some time after the request has
ended, because a decode server may ask late."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

from nextn.server.process.messages import Ready

MOST_ENDED = 2**16  # maximum number of rooms that stay known after their requests have ended


@dataclass(slots=True, eq=False)
class Room:
    """One request's room. rank, ready: identify the engine process that has the request; after a restart
    `ready` differs. lost: the request ended before its whole prompt was computed."""

    rank: int
    ready: Ready
    lost: bool = False
    ended: float = 0.0  # monotonic time; 0: not ended


class Rooms:
    """All rooms, by number. grace: seconds for which a room stays known after its request has ended."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._running: dict[int, Room] = {}
        self._ended: OrderedDict[int, Room] = OrderedDict()

    def open(self, room: int, rank: int, ready: Ready) -> bool:
        """Called when a request with this room is sent to an engine. Returns False if a running request has
        the room."""
        self._forget_old()
        if room in self._running:
            return False
        self._ended.pop(room, None)
        self._running[room] = Room(rank, ready)
        return True

    def end(self, room: int, lost: bool) -> None:
        """Called when the room's request has ended."""
        known = self._running.pop(room)
        known.lost, known.ended = lost, time.monotonic()
        self._ended[room] = known
        self._forget_old()

    def find(self, room: int) -> Room | None:
        self._forget_old()
        return self._running.get(room) or self._ended.get(room)

    def _forget_old(self) -> None:
        old = time.monotonic() - self.grace
        while self._ended:
            first = next(iter(self._ended.values()))
            if first.ended > old and len(self._ended) <= MOST_ENDED:
                break
            self._ended.popitem(last=False)
