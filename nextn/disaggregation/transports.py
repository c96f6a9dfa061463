"""How pieces get from a source to a sink: through the connection, or through the sink's memory.

The sink's memory consists of slots. The source writes it as shared memory (MemoryListener) or
with NIXL (Writes).
Unless stated otherwise, methods run in the engine's thread, with the source's lock held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.buffers import Buffers
from nextn.disaggregation.connection import Connection
from nextn.disaggregation.framing import MOST_HEADER, TAIL, Broken, frame_start
from nextn.disaggregation.memory import Slots
from nextn.disaggregation.memory_listener import MemoryListener
from nextn.disaggregation.messages import Done, Pages
from nextn.disaggregation.page_copies import PageCopies
from nextn.disaggregation.writes import Writes


class Owner(Protocol):
    """What a transport needs from the source."""

    def send_now(self, connection: Connection) -> None: ...

    def call(self, function: Callable[..., None], *given: Any) -> None: ...

    def lost_by(self, connection: Connection, error: Exception) -> None: ...

    def dropped(self, connection: Connection, pages: Pages) -> bool:
        """Whether the transfer of these pages has ended. Then gives back their slot and their charge."""


class Transport(ABC):
    def __init__(self, owner: Owner, page_bytes: int) -> None:
        self._owner, self._page_bytes = owner, page_bytes

    @abstractmethod
    def memory(self, connection: Connection, pages: Pages) -> NDArray[np.uint8]:
        """Returns memory for these pages. The caller then calls `send` or `give_back`. Sets
        `pages.memory_slot` if it is a slot."""

    @abstractmethod
    def give_back(self, connection: Connection, slot: int) -> None: ...

    @abstractmethod
    def send(self, connection: Connection, pages: Pages, data: NDArray[np.uint8]) -> None:
        """data: the bytes of the pages, in any memory. Nobody changes them any more."""

    def copy(self, connection: Connection, pages: Pages, copies: PageCopies, table: Sequence[int]) -> None:
        """Copies pages out of the pool, sends them, and sets their checksum. table: their page numbers in the
        pool."""
        data = self.memory(connection, pages)
        pages.checksum = copies.read(table, data)
        self.send(connection, pages, data)

    @abstractmethod
    def send_done(self, connection: Connection, done: Done, say: Callable[[], None]) -> None:
        """Calls `say` when all earlier pages have arrived. Runs in the I/O thread."""


class SocketTransport(Transport):
    def __init__(self, owner: Owner, page_bytes: int, piece_bytes: int) -> None:
        super().__init__(owner, page_bytes)
        self._buffers = Buffers(MOST_HEADER + piece_bytes)

    def memory(self, connection: Connection, pages: Pages) -> NDArray[np.uint8]:
        return self._buffers.take(pages.pages * self._page_bytes)

    def give_back(self, connection: Connection, slot: int) -> None:
        pass

    def send(self, connection: Connection, pages: Pages, data: NDArray[np.uint8]) -> None:
        checksum, pages.checksum = pages.checksum, 0
        connection.send(pages, data, len(data), checksum)
        self._owner.send_now(connection)

    def copy(self, connection: Connection, pages: Pages, copies: PageCopies, table: Sequence[int]) -> None:
        if copies.sockets is not None and connection.clear:
            self._straight(connection, pages, copies, table)
        else:
            super().copy(connection, pages, copies, table)

    def _straight(
        self, connection: Connection, pages: Pages, copies: PageCopies, table: Sequence[int]
    ) -> None:
        """Copies pages and sends them at the same time, as much as the socket takes."""
        size = pages.pages * self._page_bytes
        start = np.frombuffer(frame_start(pages, size + TAIL), np.uint8)
        buffer, runs = self._buffers.take(len(start) + size + TAIL), np.array(table, np.int64)
        buffer[: len(start)] = start
        left = np.zeros(2, np.int64)
        assert copies.sockets is not None
        copies.sockets.nx_send_pages(
            *copies.runs(runs), connection.end.fileno(), buffer.ctypes.data, len(start), left.ctypes.data
        )
        connection.send_rest(buffer[left[0] : left[1]].data, size)
        self._owner.send_now(connection)

    def send_done(self, connection: Connection, done: Done, say: Callable[[], None]) -> None:
        say()


class MemoryTransport(Transport):
    """place: holds the memory of each sink."""

    def __init__(self, owner: Owner, place: MemoryListener | Writes, page_bytes: int) -> None:
        super().__init__(owner, page_bytes)
        self._place = place

    def slots(self, connection: Connection) -> int:
        """Number of slots of this connection. 0: the sink has not made its memory yet."""
        memory = self._memories.get(connection)
        return 0 if memory is None else len(memory)

    @property
    def _memories(self) -> dict[Connection, Any]:
        return self._place.memories

    def memory(self, connection: Connection, pages: Pages) -> NDArray[np.uint8]:
        memory: Slots = self._memories[connection]
        pages.memory_slot = memory.free.pop()
        return memory[pages.memory_slot][: pages.pages * self._page_bytes]

    def give_back(self, connection: Connection, slot: int) -> None:
        if slot >= 0 and (memory := self._memories.get(connection)) is not None:
            memory.free.append(slot)

    def send(self, connection: Connection, pages: Pages, data: NDArray[np.uint8]) -> None:
        if pages.memory_slot < 0:
            self.memory(connection, pages)[:] = data
        if isinstance(self._place, Writes):
            self._owner.call(self._write, self._place, connection, pages)
        else:
            connection.send(pages)
            self._owner.send_now(connection)

    def read(self, connection: Connection, slot: int) -> None:
        """The sink has read this slot. Runs in the I/O thread. Raises Broken."""
        memory = self._memories.get(connection)
        if memory is None or slot >= len(memory) or slot in memory.free:
            raise Broken("the decode server read a memory slot that was not written")
        memory.free.append(slot)

    # In the I/O thread

    def _write(self, writes: Writes, connection: Connection, pages: Pages) -> None:
        if self._owner.dropped(connection, pages):
            return
        size = pages.pages * self._page_bytes
        try:
            writes.begin(connection, pages.memory_slot, size, lambda: self._written(connection, pages))
        except Broken as error:
            self._owner.lost_by(connection, error)

    def _written(self, connection: Connection, pages: Pages) -> None:
        if not self._owner.dropped(connection, pages):
            connection.send(pages)

    def send_done(self, connection: Connection, done: Done, say: Callable[[], None]) -> None:
        if isinstance(self._place, Writes):
            self._place.after(connection, say)
        else:
            say()
