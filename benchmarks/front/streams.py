"""A client that takes little CPU time: streams over plain sockets, one thread, no parser of JSON or HTTP."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

TEXT = re.compile(rb'"(?:text|content)":"([^"]*)"')
DONE = b"data: [DONE]"
READ = 1 << 18
SILENCE_SECONDS = 20.0


class Now(NamedTuple):
    """The totals of all streams at one time."""

    at: float  # time.perf_counter()
    characters: int
    events: int
    bytes: int


@dataclass(eq=False)
class Stream:
    socket: socket.socket
    texts: list[bytes] = field(default_factory=list)
    rest: bytes = b""
    done: bool = False

    def take(self) -> tuple[int, int, int]:
        """Reads once. Returns the new characters, events and bytes. Raises ConnectionError."""
        data = self.socket.recv(READ)
        if not data:
            raise ConnectionError(f"the server closed the connection after {self.rest[-200:]!r}")
        whole, _, self.rest = (self.rest + data).rpartition(b"\n\n")
        texts = TEXT.findall(whole)
        self.texts += texts
        self.done = DONE in whole
        return sum(map(len, texts)), sum(map(bool, texts)), len(data)

    @property
    def text(self) -> str:
        return b"".join(self.texts).decode()


def request(address: tuple[str, int], path: str, body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def run(
    address: tuple[str, int],
    message: bytes,
    count: int,
    received: Callable[[int], None],
    mark: Callable[[], None],
) -> tuple[Now, Now, list[str]]:
    """Sends the request on `count` connections. Returns the totals when all streams had begun, the totals
    when the first one ended, and all texts. Calls `received` with the number of characters so far, and `mark`
    at both times. Raises TimeoutError if no stream sends data for SILENCE_SECONDS."""
    streams = []
    characters = events = size = 0
    begun: set[Stream] = set()
    first = last = None
    with selectors.DefaultSelector() as waiting:
        for _ in range(count):
            stream = Stream(socket.create_connection(address))
            stream.socket.sendall(message)
            streams.append(stream)
            waiting.register(stream.socket, selectors.EVENT_READ, stream)
        while waiting.get_map():
            ready = waiting.select(SILENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"{len(waiting.get_map())} streams are silent")
            for key, _ in ready:
                new, more, read = key.data.take()
                characters, events, size = characters + new, events + more, size + read
                if first is None and new:
                    begun.add(key.data)
                if key.data.done:
                    waiting.unregister(key.data.socket)
                    key.data.socket.close()
                    if last is None:
                        last = Now(time.perf_counter(), characters, events, size)
                        mark()
            received(characters)
            if first is None and len(begun) == count:
                first = Now(time.perf_counter(), characters, events, size)
                mark()
    assert first is not None
    assert last is not None
    return first, last, [stream.text for stream in streams]
