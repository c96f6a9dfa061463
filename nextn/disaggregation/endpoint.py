"""What a source and a sink share: one thread that reads and writes their sockets.

Their methods for the engine run in the engine's thread and hold `lock` while they look at what both threads
know. Sockets are read and closed by this thread only: `call` hands it work. The engine's thread may send
(`send_now`): what it has just copied is in its cache, and nobody has to be woken for it.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from nextn.disaggregation.bell import Bell
from nextn.disaggregation.connection import Connection
from nextn.disaggregation.framing import Body, Broken
from nextn.disaggregation.identity import Identity
from nextn.disaggregation.layout import Layout
from nextn.disaggregation.memory import check_backend
from nextn.disaggregation.messages import AnyMessage
from nextn.stats import TransferStats

log = logging.getLogger("nextn.transfer")

LOOK = 0.0005  # seconds
READS = 16  # in a row, before other connections are looked at
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Endpoint(ABC):
    """Ends with an error whatever it has under way when its thread fails, and all that is asked for later."""

    def __init__(self, name: str, identity: Identity, backend: str, timeout: float) -> None:
        check_backend(backend)
        self.identity, self.backend, self.timeout = identity, backend, timeout
        self.layout = Layout.of(identity)
        self.stats = TransferStats()
        self.lock = threading.RLock()
        self.broken: str | None = None  # why nothing works any more
        self.paused = False  # nothing is read
        self.connections: set[Connection] = set()
        self._bell, self._wake = Bell(), Bell()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self.watch(self._wake.fileno(), self._wake.clear)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def fileno(self) -> int:
        return self._bell.fileno()

    def clear(self) -> None:
        self._bell.clear()

    def check(self) -> None:
        """Raises RuntimeError once nothing works any more."""
        if self.broken is not None:
            raise RuntimeError(self.broken)

    def close(self) -> None:
        self._closed = True
        self._wake.ring()
        if self._thread.is_alive():
            self._thread.join()
        self._bell.close()

    # What a source and a sink are, each by itself. All but `body_for` and `sent` of this thread.

    @abstractmethod
    def body_for(self, connection: Connection, message: AnyMessage, size: int) -> Body | None:
        """Where the body of `message` goes. Raises Broken."""

    @abstractmethod
    def sent(self, connection: Connection, charge: int) -> None:
        """A frame went out, or will not."""

    @abstractmethod
    def came(self, connection: Connection, message: AnyMessage, body: Body | None) -> None:
        """Raises Broken."""

    @abstractmethod
    def connected(self, connection: Connection) -> None: ...

    @abstractmethod
    def gone(self, connection: Connection, error: str) -> None: ...

    @abstractmethod
    def tick(self, now: float) -> None: ...

    @abstractmethod
    def failed(self, error: str) -> None:
        """Ends all there is. `broken` is set."""

    @abstractmethod
    def looks(self) -> bool:
        """Whether something is under way that no socket tells of, so that `look` has to be called soon."""

    @abstractmethod
    def look(self) -> None:
        """Is called in each turn."""

    # For them

    def ring(self) -> None:
        """The engine has something to look at."""
        self._bell.ring()

    def call(self, function: Callable[..., None], *given: Any) -> None:
        """Has this thread call it soon."""
        self._calls.append((function, given))
        self._wake.ring()

    def watch(self, file: Any, readable: Callable[[], None]) -> None:
        self._selector.register(file, READ, readable)

    def unwatch(self, file: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def add(self, end: socket.socket, name: str, connecting: bool = False) -> Connection:
        connection = Connection(end, name, self.body_for, self.sent, self.lock)
        connection.connecting = connecting
        self.connections.add(connection)
        return connection

    def lose(self, connection: Connection, error: str) -> None:
        if connection.lost:
            return
        self.unwatch(connection.end)
        with self.lock:
            connection.lost = True
            connection.end.close()
        self.connections.discard(connection)
        self.gone(connection, error)

    def send_now(self, connection: Connection) -> None:
        """From the engine's thread: as much of what waits as the socket takes. This thread sends the rest."""
        try:
            connection.flush()
        except OSError as error:
            self.call(self.lost_by, connection, error)
            return
        with self.lock:
            if connection.waiting and not connection.interest & WRITE:
                self._wake.ring()

    # The thread

    def _run(self) -> None:
        error = "closed"
        try:
            while not self._closed:
                self._turn()
        except BaseException as problem:
            log.exception("KV transfer stopped")
            error = f"KV transfer stopped: {type(problem).__name__}: {problem}"
        finally:
            with self.lock:
                self.broken = error
                for connection in self.connections:
                    connection.lost = True
                    connection.end.close()
                self.connections.clear()
                self.failed(error)
            self._selector.close()
            self._wake.close()
            self.ring()

    def _turn(self) -> None:
        """Reads before it looks at the time: after a stop of this process itself, nobody is too late whose
        bytes are here."""
        for key, mask in self._selector.select(LOOK if self.looks() else self._tick_seconds):
            if isinstance(key.data, Connection):
                self._serve(key.data, mask)
            else:
                key.data()
        while self._calls:
            function, given = self._calls.popleft()
            function(*given)
        self.look()
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + self._tick_seconds
            self.tick(now)
            for connection in list(self.connections):
                if (error := connection.check(now, self.timeout, not self.paused)) is not None:
                    self.lose(connection, error)
        for connection in list(self.connections):
            self._send(connection)

    _next_tick = 0.0

    @property
    def _tick_seconds(self) -> float:
        return min(1.0, self.timeout / 16)

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if connection.connecting:
                connection.finish_connect()
                self.connected(connection)
            if mask & READ and not connection.lost:
                self._read(connection)
        except BlockingIOError:
            pass
        except EOFError:
            self.lose(connection, "the connection was closed")
        except (OSError, Broken) as error:
            self.lost_by(connection, error)

    def _read(self, connection: Connection) -> None:
        for _ in range(READS):
            for message, body in connection.read():
                self.came(connection, message, body)
                if connection.lost:
                    return
            if self.paused:
                return

    def _send(self, connection: Connection) -> None:
        """What waits, and sets what the selector looks for."""
        try:
            if not connection.connecting:
                connection.flush()
        except OSError as error:
            self.lost_by(connection, error)
            return
        if connection.closing and not connection.waiting:
            self.lose(connection, "closed")
            return
        with self.lock:
            self._select(connection)

    def _select(self, connection: Connection) -> None:
        """With the lock held, or what `send_now` leaves might not be waited for."""
        interest = (0 if self.paused else READ) | (WRITE if connection.waiting else 0)
        if interest != connection.interest:
            if not connection.interest:
                self._selector.register(connection.end, interest, connection)
            elif not interest:
                self._selector.unregister(connection.end)
            else:
                self._selector.modify(connection.end, interest, connection)
            connection.interest = interest

    def lost_by(self, connection: Connection, error: Exception) -> None:
        if isinstance(error, Broken):
            log.warning("KV transfer with %s: %s", connection.name, error)
        self.lose(connection, str(error) or type(error).__name__)
