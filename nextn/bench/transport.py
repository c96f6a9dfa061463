"""An HTTP/1.1 transport of httpx for the load client: asyncio reads and httptools parses.

httpx's own transport takes about 50 microseconds of a core for each event of a stream. If the server runs on
the same machine, the engine loses that time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import httptools
import httpx

Origin = tuple[bool, str, int]
PAUSE_BYTES = 1 << 20  # with more unread bytes, reading from the socket pauses


class Connection(asyncio.Protocol):
    """A connection, with one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._parts: deque[bytes] = deque()
        self._unread = 0
        self._begun = self._ended = True
        self._kept = True  # the server keeps the connection open after the answer
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers = 0, []
        self._begun = self._ended = False
        self.transport.write(data)

    @property
    def reusable(self) -> bool:
        """Whether the answer has been read completely and another request can follow."""
        assert self.transport is not None
        return self._ended and self._kept and not self._parts and not self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # Called by the parser

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._begun = self.status != 100
        self._kept = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        self._ended = self._begun

    # Called by the loop

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            self._error = httpx.RemoteProtocolError(str(e))
            self.close()
        if self._unread > PAUSE_BYTES and self.transport is not None:
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended and self._error is None:
            names = {name.lower() for name, _ in self.headers}
            if self._begun and error is None and not names & {b"content-length", b"transfer-encoding"}:
                self._ended = True  # an answer without a length
            elif error is not None:
                self._error = httpx.ReadError(str(error))
            else:
                self._error = httpx.RemoteProtocolError("the server closed the connection during its answer")
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _more(self, seconds: float | None) -> None:
        """Waits until data arrives or the connection ends, at most `seconds`. Raises httpx's errors."""
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._silent)
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    def _silent(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_exception(httpx.ReadTimeout("the server was silent for too long"))

    async def head(self, seconds: float | None) -> None:
        """Waits for `status` and `headers`."""
        while not self._begun:
            await self._more(seconds)

    async def body(self, seconds: float | None) -> AsyncIterator[bytes]:
        while True:
            if self._parts:
                data = b"".join(self._parts)
                self._parts.clear()
                if self._unread > PAUSE_BYTES and self.transport is not None:
                    self.transport.resume_reading()
                self._unread = 0
                yield data
            elif self._ended:
                return
            else:
                await self._more(seconds)


async def within(work: Coroutine[Any, Any, object], seconds: float | None) -> None:
    """Waits for the work, at most `seconds`. Raises asyncio.TimeoutError. `asyncio.wait_for` of Python 3.10
    and 3.11 loses a cancellation that comes just as the work ends; the canceller would then wait forever."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise asyncio.TimeoutError
    task.result()


class Body(httpx.AsyncByteStream):
    def __init__(self, transport: Transport, origin: Origin, connection: Connection, seconds: float | None):
        self.transport, self.origin, self.connection, self.seconds = transport, origin, connection, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self.connection.body(self.seconds):
            yield data

    async def aclose(self) -> None:
        self.transport.take_back(self.origin, self.connection)


class Transport(httpx.AsyncBaseTransport):
    """Keeps connections for reuse once their answer has been read completely."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._context: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url, limits = request.url, request.extensions.get("timeout", {})
        secure = url.scheme == "https"
        origin = secure, url.host, url.port or (443 if secure else 80)
        connection = await self._connection(origin, limits.get("connect"))
        content = await request.aread()
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), url.raw_path)]
        lines += [b"%s: %s" % pair for pair in request.headers.raw]
        seconds = limits.get("read")
        try:
            connection.send(b"\r\n".join([*lines, b"", content]))
            await connection.head(seconds)
        except BaseException:
            connection.close()
            raise
        body = Body(self, origin, connection, seconds)
        return httpx.Response(connection.status, headers=connection.headers, stream=body, request=request)

    async def _connection(self, origin: Origin, seconds: float | None) -> Connection:
        idle = self._idle.get(origin, [])
        while idle:
            if (connection := idle.pop()).reusable:
                return connection
        secure, host, port = origin
        if secure and self._context is None:
            self._context = httpx.create_ssl_context(trust_env=False)
        context = self._context if secure else None
        loop = asyncio.get_running_loop()
        connection = Connection()
        try:
            await within(loop.create_connection(lambda: connection, host, port, ssl=context), seconds)
        except asyncio.TimeoutError as e:  # not the built-in TimeoutError in Python 3.10
            connection.close()  # the connection can have been made in the meantime
            raise httpx.ConnectTimeout(f"no connection to {host}:{port} within {seconds} s") from e
        except OSError as e:
            raise httpx.ConnectError(str(e)) from e
        except asyncio.CancelledError:
            connection.close()
            raise
        return connection

    def take_back(self, origin: Origin, connection: Connection) -> None:
        if connection.reusable:
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the loop close the sockets
