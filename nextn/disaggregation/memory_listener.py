"""A Unix socket through which sinks give a source the memory that it writes pages into (backend "shm").

The socket has an abstract name, so there is no file. With the memory the sink sends the key that the source
gave it on their connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol

from nextn.disaggregation.connection import Connection
from nextn.disaggregation.memory import SharedSlots, slots_of

KEY = 16  # bytes
MOST_PENDING = 64


class Watcher(Protocol):
    """The thread that serves this listener."""

    def watch(self, file: Any, readable: Callable[[], None]) -> None: ...

    def unwatch(self, file: Any) -> None: ...


class MemoryListener:
    """on_memory: called when a sink has sent memory. memories: the memory of each connection."""

    def __init__(self, owner: Watcher, slot_bytes: int, on_memory: Callable[[], None]) -> None:
        self.name = f"nextn-kv-{secrets.token_hex(16)}"
        self.memories: dict[Connection, SharedSlots] = {}
        self._keys: dict[bytes, Connection] = {}
        self._owner, self._slot_bytes, self._on_memory = owner, slot_bytes, on_memory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(128)
        self._socket.setblocking(False)
        self._pending: list[socket.socket] = []
        owner.watch(self._socket, self._accept)

    def key(self, connection: Connection) -> bytes:
        """Makes a key for the sink at the other end of this connection."""
        key = secrets.token_bytes(KEY)
        self._keys[key] = connection
        return key

    def forget(self, connection: Connection) -> None:
        self.memories.pop(connection, None)
        self._keys = {key: owner for key, owner in self._keys.items() if owner is not connection}

    def close(self) -> None:
        self._socket.close()
        for each in self._pending:
            each.close()

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:
            return
        if len(self._pending) >= MOST_PENDING:  # the oldest has sent nothing so far
            self._drop(self._pending[0])
        client.setblocking(False)
        self._pending.append(client)
        self._owner.watch(client, lambda: self._receive(client))

    def _receive(self, client: socket.socket) -> None:
        files: list[int] = []
        with contextlib.suppress(OSError, ValueError):
            key, files, _, _ = socket.recv_fds(client, KEY, 1)
            if len(files) == 1 and key in self._keys:
                self.memories[self._keys.pop(key)] = self._memory(files[0])
                self._on_memory()
        for file in files:
            os.close(file)
        self._drop(client)

    def _memory(self, file: int) -> SharedSlots:
        """Raises ValueError for memory that could shrink: writing past its end would kill this process."""
        slots = slots_of(self._slot_bytes)
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("the shared memory is not sealed")
        if os.fstat(file).st_size < slots * self._slot_bytes:
            raise ValueError("the shared memory is too small")
        return SharedSlots(file, slots, self._slot_bytes)

    def _drop(self, client: socket.socket) -> None:
        self._pending.remove(client)
        self._owner.unwatch(client)
        client.close()
