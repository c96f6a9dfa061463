"""Writes pages into sinks' memory through NIXL, and sends the messages about them afterwards.

A connection has as many slots here as the sink has registered. Slot n is always written to the sink's slot n.
Each message waits for all earlier writes of its connection, so the order is kept.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nextn.disaggregation.connection import Connection
from nextn.disaggregation.framing import Broken
from nextn.disaggregation.memory import slots_of
from nextn.disaggregation.messages import Memory
from nextn.disaggregation.nixl_agent import Agent, Region


@dataclass(slots=True)
class _Peer:
    name: str
    address: int  # of its first slot


@dataclass(slots=True)
class _Step:
    handle: Any  # None: no write to wait for
    then: Callable[[], None]
    since: float


class Writes:
    """Belongs to the source's I/O thread. memories: the memory of each connection."""

    def __init__(self, slot_bytes: int, timeout: float) -> None:
        self.memories: dict[Connection, Region] = {}
        self._agent = Agent()
        self._slot_bytes, self._timeout = slot_bytes, timeout
        self._peers: dict[Connection, _Peer] = {}
        self._queues: dict[Connection, deque[_Step]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._queues)

    def enter(self, connection: Connection, memory: Memory) -> None:
        """The sink has sent its Memory. Raises Broken."""
        if connection in self._peers:
            raise Broken("memory was registered twice")
        name = self._agent.add(memory.metadata)
        self._peers[connection] = _Peer(name, memory.address)
        self.memories[connection] = self._agent.region(slots_of(self._slot_bytes), self._slot_bytes)

    def begin(self, connection: Connection, slot: int, size: int, then: Callable[[], None]) -> None:
        """Starts to write the first `size` bytes of this slot, and calls `then` after it. Raises Broken."""
        peer = self._peers[connection]
        data = self.memories[connection][slot][:size]
        handle = self._agent.write(data, peer.name, peer.address + slot * self._slot_bytes)
        self._queue(connection, handle, then)

    def after(self, connection: Connection, then: Callable[[], None]) -> None:
        """Calls `then` when all writes that have begun are done."""
        if connection in self._queues:
            self._queue(connection, None, then)
        else:
            then()

    def _queue(self, connection: Connection, handle: Any, then: Callable[[], None]) -> None:
        queue = self._queues.setdefault(connection, deque())
        queue.append(_Step(handle, then, time.monotonic()))

    def poll(self) -> list[tuple[Connection, Broken]]:
        """Calls the functions whose writes are done. Returns the connections whose writes failed, with the
        errors."""
        failed = []
        for connection in list(self._queues):
            try:
                self._poll_one(connection)
            except Broken as error:
                failed.append((connection, error))
        return failed

    def _poll_one(self, connection: Connection) -> None:
        queue = self._queues[connection]
        while queue:
            step = queue[0]
            if step.handle is not None and not self._agent.done(step.handle):
                if time.monotonic() - step.since > self._timeout:
                    raise Broken(f"NIXL: a write took longer than {self._timeout:g} s")
                return
            queue.popleft()
            step.then()
        del self._queues[connection]

    def forget(self, connection: Connection) -> None:
        """Abandons the writes of a connection. Its sink no longer uses the memory that they go to."""
        for step in self._queues.pop(connection, ()):
            if step.handle is not None:
                with contextlib.suppress(Broken):
                    self._agent.abandon(step.handle)
        if (peer := self._peers.pop(connection, None)) is not None:
            with contextlib.suppress(Broken):
                self._agent.remove(peer.name)
        if (region := self.memories.pop(connection, None)) is not None:
            self._agent.give_back(region)

    def close(self) -> None:
        """Call it after the thread has ended."""
        for connection in list(self._peers):
            self.forget(connection)
        self._agent.close()
