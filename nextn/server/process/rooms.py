"""The rooms of a prefill server: which engine has the request that a decode server asks for.

A room is opened when its request goes to an engine. It stays known for a while after the request has ended,
as a decode server may ask late.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

from nextn.server.process.messages import Ready

MOST_ENDED = 2**16  # rooms that are remembered after their requests ended
MOST_ASKING = 2**12  # askers that wait for their rooms


@dataclass(slots=True, eq=False)
class Room:
    """rank: of the engine, and `ready`: of the one that has it, not of its successors. `lost`: its request
    ended before all of its prompt was computed."""

    rank: int
    ready: Ready
    lost: bool = False
    ended: float = 0.0  # monotonic; 0: it has not


class Rooms:
    """grace: seconds for which a room is known after its request has ended."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._running: dict[int, Room] = {}
        self._ended: OrderedDict[int, Room] = OrderedDict()
        self._asking: dict[int, list[asyncio.Future[None]]] = {}
        self._askers = 0

    def open(self, room: int, rank: int, ready: Ready) -> bool:
        """A request of this room goes to an engine. False: another one has the room."""
        self._forget_old()
        if room in self._running:
            return False
        self._ended.pop(room, None)
        self._running[room] = Room(rank, ready)
        for asking in self._asking.pop(room, ()):
            if not asking.done():
                asking.set_result(None)
        return True

    def end(self, room: int, lost: bool) -> None:
        """Its request has ended."""
        known = self._running.pop(room)
        known.lost, known.ended = lost, time.monotonic()
        self._ended[room] = known
        self._forget_old()

    def find(self, room: int) -> Room | None:
        self._forget_old()
        return self._running.get(room) or self._ended.get(room)

    async def wait_for(self, room: int, seconds: float) -> Room | None:
        """As `find`, but waits for a room that is not known yet."""
        known = self.find(room)
        if known is not None or self._askers >= MOST_ASKING:
            return known
        asking = asyncio.get_running_loop().create_future()
        self._asking.setdefault(room, []).append(asking)
        self._askers += 1
        try:
            await asyncio.wait([asking], timeout=seconds)
        finally:
            self._askers -= 1
            left = self._asking.get(room, [])
            if asking in left:
                left.remove(asking)
                if not left:
                    del self._asking[room]
        return self.find(room)

    def _forget_old(self) -> None:
        old = time.monotonic() - self.grace
        while self._ended:
            first = next(iter(self._ended.values()))
            if first.ended > old and len(self._ended) <= MOST_ENDED:
                break
            self._ended.popitem(last=False)
