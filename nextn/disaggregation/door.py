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
VISITORS = 64


class Watcher(Protocol):
    """The thread that serves the door."""

    def watch(self, file: Any, readable: Callable[[], None]) -> None: ...

    def unwatch(self, file: Any) -> None: ...


class Door:
    """entered: called when a sink has given memory. memories: the memory of each connection."""

    def __init__(self, owner: Watcher, slot_bytes: int, entered: Callable[[], None]) -> None:
        self.name = f"nextn-kv-{secrets.token_hex(16)}"
        self.memories: dict[Connection, SharedSlots] = {}
        self._keys: dict[bytes, Connection] = {}
        self._owner, self._slot_bytes, self._entered = owner, slot_bytes, entered
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(128)
        self._socket.setblocking(False)
        self._visitors: list[socket.socket] = []
        owner.watch(self._socket, self._open)

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
        for each in self._visitors:
            each.close()

    def _open(self) -> None:
        try:
            visitor, _ = self._socket.accept()
        except OSError:
            return
        if len(self._visitors) >= VISITORS:  # the oldest has sent nothing so far
            self._dismiss(self._visitors[0])
        visitor.setblocking(False)
        self._visitors.append(visitor)
        self._owner.watch(visitor, lambda: self._listen(visitor))

    def _listen(self, visitor: socket.socket) -> None:
        files: list[int] = []
        with contextlib.suppress(OSError, ValueError):
            key, files, _, _ = socket.recv_fds(visitor, KEY, 1)
            if len(files) == 1 and key in self._keys:
                self.memories[self._keys.pop(key)] = self._memory(files[0])
                self._entered()
        for file in files:
            os.close(file)
        self._dismiss(visitor)

    def _memory(self, file: int) -> SharedSlots:
        """Raises ValueError for memory that could shrink: writing past its end would kill this process."""
        slots = slots_of(self._slot_bytes)
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("memory that is not sealed")
        if os.fstat(file).st_size < slots * self._slot_bytes:
            raise ValueError("memory that is too small")
        return SharedSlots(file, slots, self._slot_bytes)

    def _dismiss(self, visitor: socket.socket) -> None:
        self._visitors.remove(visitor)
        self._owner.unwatch(visitor)
        visitor.close()
