"""The base class of source and sink: one thread that reads and writes their sockets.

The methods for the engine run in the engine's thread. They hold `lock` while they use state that both threads
share. Only the I/O thread reads and closes sockets: `call` gives it work. The engine's thread may send
(`send_now`): the data that it has just copied is in its cache, and no other thread has to wake up.
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

from nextn.disaggregation.connection import Connection
from nextn.disaggregation.framing import Body, Broken
from nextn.disaggregation.identity import Identity
from nextn.disaggregation.layout import Layout
from nextn.disaggregation.memory import check_backend
from nextn.disaggregation.messages import AnyMessage
from nextn.disaggregation.wakeup_pipe import WakeupPipe
from nextn.stats import TransferStats

log = logging.getLogger("nextn.transfer")

POLL_SECONDS = 0.0005  # while `needs_polling` is true
READS = 16  # reads from one connection before the others get their turn
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Endpoint(ABC):
    """If its thread fails, all transfers end with an error, and so do all that are asked for later."""

    def __init__(self, name: str, identity: Identity, backend: str, timeout: float) -> None:
        check_backend(backend)
        self.identity, self.backend, self.timeout = identity, backend, timeout
        self.layout = Layout.of(identity)
        self.stats = TransferStats()
        self.lock = threading.RLock()
        self.broken: str | None = None  # the error with which the thread ended
        self.paused = False  # whether the thread reads from no connection
        self.connections: set[Connection] = set()
        self._engine_wakeup, self._io_wakeup = WakeupPipe(), WakeupPipe()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self.watch(self._io_wakeup.fileno(), self._io_wakeup.clear)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def fileno(self) -> int:
        return self._engine_wakeup.fileno()

    def clear(self) -> None:
        self._engine_wakeup.clear()

    def check(self) -> None:
        """Raises RuntimeError if the thread has ended."""
        if self.broken is not None:
            raise RuntimeError(self.broken)

    def close(self) -> None:
        self._closed = True
        self._io_wakeup.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._engine_wakeup.close()

    # Source and sink implement these. All are called in the I/O thread; the engine's thread may also call
    # `sent`.

    @abstractmethod
    def body_for(self, connection: Connection, message: AnyMessage, size: int) -> Body | None:
        """Returns where the body of `message` goes. Raises Broken."""

    @abstractmethod
    def sent(self, connection: Connection, charge: int) -> None:
        """A frame was sent, or will never be sent. See Connection."""

    @abstractmethod
    def on_message(self, connection: Connection, message: AnyMessage, body: Body | None) -> None:
        """A complete frame has arrived. Raises Broken."""

    @abstractmethod
    def on_connect(self, connection: Connection) -> None: ...

    @abstractmethod
    def on_disconnect(self, connection: Connection, error: str) -> None: ...

    @abstractmethod
    def tick(self, now: float) -> None: ...

    @abstractmethod
    def on_failure(self, error: str) -> None:
        """Ends all transfers. `broken` is set, and the lock is held."""

    @abstractmethod
    def needs_polling(self) -> bool:
        """Whether to call `poll_transfers` every `POLL_SECONDS`: a transfer is in progress that no socket
        reports."""

    @abstractmethod
    def poll_transfers(self) -> None:
        """Called in each turn of the thread."""

    # For source and sink

    def wake_engine(self) -> None:
        """Wakes the engine: `poll` or `wanted` has something new."""
        self._engine_wakeup.wake()

    def call(self, function: Callable[..., None], *given: Any) -> None:
        """Makes the I/O thread call this function soon."""
        self._calls.append((function, given))
        self._io_wakeup.wake()

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
        self.on_disconnect(connection, error)

    def send_now(self, connection: Connection) -> None:
        """Called in the engine's thread: sends as much as the socket takes. The I/O thread sends the rest."""
        try:
            connection.flush()
        except OSError as error:
            self.call(self.lost_by, connection, error)
            return
        with self.lock:
            if connection.waiting and not connection.interest & WRITE:
                self._io_wakeup.wake()

    # The I/O thread

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
                self.on_failure(error)
            self._selector.close()
            self._io_wakeup.close()
            self.wake_engine()

    def _turn(self) -> None:
        """Reads before it checks for timeouts. If this process itself was stopped for a while, a peer whose
        bytes have arrived is not late."""
        for key, mask in self._selector.select(POLL_SECONDS if self.needs_polling() else self._tick_seconds):
            if isinstance(key.data, Connection):
                self._serve(key.data, mask)
            else:
                key.data()
        while self._calls:
            function, given = self._calls.popleft()
            function(*given)
        self.poll_transfers()
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
                self.on_connect(connection)
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
                self.on_message(connection, message, body)
                if connection.lost:
                    return
            if self.paused:
                return

    def _send(self, connection: Connection) -> None:
        """Sends queued frames, and updates the events that the selector waits for."""
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
        """The caller holds the lock. Otherwise the selector could miss frames that `send_now` has left in the
        queue."""
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
