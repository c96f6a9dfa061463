"""The HTTP process's end of the socket to one engine.

zmq's own asyncio sockets would make a step of the engine 50 microseconds longer. Here the event loop watches
the socket's file descriptor, and all messages that have arrived are handled together. So tokens of several
steps can be sent as one event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq

from nextn.server.process.messages import FromEngine, decode_from_engine
from nextn.trace import TRACE

MOST = 64  # maximum messages that are handled before other tasks of this process run


class Channel:
    """A socket bound to `address`, to which the engine connects. It never blocks: sent messages wait in a
    queue. They are lost if no engine is connected."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.bind(address)
        self._loop = asyncio.get_running_loop()
        self._on_message: Callable[[FromEngine], None] | None = None
        self._failed: asyncio.Future[None] | None = None

    def send(self, message: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # the engine has ended; the supervisor notices that
            self._socket.send(message, zmq.NOBLOCK)
        if self._on_message is not None:  # the descriptor may not signal messages that came during the call
            self._loop.call_soon(self._take)

    def listen(self, on_message: Callable[[FromEngine], None]) -> asyncio.Future[None]:
        """Calls `on_message` with each message from now on, until `stop_listening`. If `on_message` raises,
        the future gets the exception."""
        self._on_message, self._failed = on_message, self._loop.create_future()
        self._loop.add_reader(self._socket.fileno(), self._take)
        self._loop.call_soon(self._take)
        return self._failed

    def stop_listening(self) -> None:
        """Stops calling `on_message`. Messages wait for the next `listen`."""
        if self._on_message is not None:
            self._on_message = None
            self._loop.remove_reader(self._socket.fileno())

    def _take(self) -> None:
        try:
            for _ in range(MOST):
                if self._on_message is None or not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    return
                data = self._socket.recv(zmq.NOBLOCK)
                lap = TRACE.laps("server")
                message = decode_from_engine(data)
                lap("decode")
                self._on_message(message)
            self._loop.call_soon(self._take)
        except Exception as e:
            self.stop_listening()
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(e)

    def close(self) -> None:
        self.stop_listening()
        self._socket.close()
        self._context.term()
