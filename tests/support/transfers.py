"""Both ends of a KV transfer without engines, a bootstrap port, and a network that fails when a test says
so."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import torch
from torch import Tensor

from nextn.disaggregation.identity import Identity
from nextn.disaggregation.remote import Remote
from nextn.disaggregation.sink import Arrived, Ended, PageSink
from nextn.disaggregation.source import OfferEnd, PageSource

IDENTITY = Identity(
    version="1", model="m", weights="bfloat16", kernels="cpu", page_size=4, layers=3, nextn_layers=1,
    width=10, dtype="bfloat16",
)  # fmt: skip
BIG_ARGS = {"layers": 20, "width": 256}
TIMEOUT = 30.0
NIXL = importlib.util.find_spec("nixl") is not None
needs_nixl = pytest.mark.skipif(not NIXL, reason="NIXL is not installed")
BACKENDS = ["tcp", "shm", pytest.param("nixl", marks=needs_nixl)]


def identity(**other: Any) -> Identity:
    return msgspec.structs.replace(IDENTITY, **other)


def prompt_of(room: int, n: int) -> list[int]:
    return [(room * 31 + i) % 50_000 for i in range(n)]


def entries(what: Identity, tokens: Sequence[int]) -> Tensor:
    """The KV entries of this prompt, in whole pages, as a function of its tokens. Do not change them."""
    return _entries(what.layers, what.page_size, what.width, what.dtype, tuple(tokens))


@functools.lru_cache(4)
def _entries(layers: int, page_size: int, width: int, dtype: str, tokens: tuple[int, ...]) -> Tensor:
    slots = -(-len(tokens) // page_size) * page_size
    seed = torch.Generator().manual_seed(hash(tokens) % (1 << 40))
    data = torch.randint(-9, 9, (layers, slots, width), generator=seed, dtype=torch.int8)
    return data.to(getattr(torch, dtype))


class Prefill:
    """Puts the pages that are wanted. pools: the entries of each request."""

    def __init__(self, what: Identity = IDENTITY, backend: str = "tcp", timeout: float = TIMEOUT) -> None:
        self.identity = what
        self.source = PageSource(what, backend, "127.0.0.1", timeout)
        self.pools: dict[str, Tensor] = {}
        self.given: list[OfferEnd] = []

    def offer(self, rid: str, room: int, tokens: Sequence[int]) -> None:
        self.pools[rid] = entries(self.identity, tokens)
        self.source.offer(rid, room, tokens)

    def whole(self, rid: str, room: int, n: int, cached: int = 0) -> None:
        self.offer(rid, room, prompt_of(room, n))
        self.source.finished(rid, n, cached)

    def pump(self, most: int = 1000) -> None:
        self.source.clear()
        size = self.identity.page_size
        for _ in range(most):
            if (piece := self.source.wanted()) is None:
                break
            first = piece.first_page * size
            part = self.pools[piece.rid][:, first : first + piece.pages * size]
            if piece.first_page % 2:
                self.source.put(piece, part.clone(memory_format=torch.contiguous_format))
            else:
                self.source.put(piece, self.source.memory(piece).copy_(part))
        self.given += self.source.poll()

    def fileno(self) -> int:
        return self.source.fileno()

    def errors(self) -> dict[str, str | None]:
        assert len({each.rid for each in self.given}) == len(self.given)
        return dict(self.given)


class Decode:
    """Checks that pages arrive in order and have the right content. `forget` allows the same rid again."""

    def __init__(self, what: Identity = IDENTITY, backend: str = "tcp", timeout: float = TIMEOUT) -> None:
        self.identity = what
        self.sink = PageSink(what, backend, timeout)
        self.slots: dict[str, int] = {}  # slots whose pages have arrived
        self.pools: dict[str, Tensor] = {}
        self.ended: dict[str, Ended] = {}

    def want(self, rid: str, remote: Remote, have: int, tokens: Sequence[int]) -> None:
        self.announce(rid, remote, tokens)
        self.begin(rid, have)

    def announce(self, rid: str, remote: Remote, tokens: Sequence[int]) -> None:
        self.pools[rid], self.slots[rid] = entries(self.identity, tokens), 0
        self.sink.want(rid, remote, tokens)

    def begin(self, rid: str, have: int) -> None:
        with self.sink.lock:
            if rid in self.sink._fetches:  # else it has ended, perhaps before `poll` said so
                self.slots[rid] = have
            self.sink.begin(rid, have)

    def fileno(self) -> int:
        return self.sink.fileno()

    def forget(self, rid: str) -> None:
        self.ended.pop(rid, None)
        del self.slots[rid]

    def pump(self, most_bytes: int = 1 << 20) -> None:
        self.sink.clear()
        for event in self.sink.poll(most_bytes):
            assert event.rid not in self.ended
            if isinstance(event, Arrived):
                self._arrived(event)
            else:
                assert event.slots <= self.slots[event.rid] < event.slots + self.identity.page_size
                self.ended[event.rid] = event

    def _arrived(self, event: Arrived) -> None:
        size, begin = self.identity.page_size, self.slots[event.rid]
        assert event.first_page * size == begin
        end = begin + event.pages * size
        assert event.data.is_contiguous()
        assert torch.equal(event.data, self.pools[event.rid][:, begin:end])
        self.slots[event.rid] = end


class End(Protocol):
    """An end that `until` serves."""

    def fileno(self) -> int: ...

    def pump(self) -> None: ...


def until(condition: Callable[[], bool], *ends: End, seconds: float = 60.0) -> None:
    """Serves the ends until the condition is true. Raises AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come to an end"
        select.select(ends, [], [], 0.02)
        for each in ends:
            each.pump()


class Bootstrap:
    """Answers GET /route?bootstrap_room=R for rooms in `routes`. Rooms in `lost` have had a request."""

    def __init__(self) -> None:
        routes = self.routes = dict[int, tuple[str, int]]()
        asked, lost = self.asked, self.lost = list[int](), set[int]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                room = int(parse_qs(urlsplit(self.path).query)["bootstrap_room"][0])
                asked.append(room)
                host, port = routes.get(room, ("", 0))
                body = json.dumps({"host": host, "port": port, "dp_rank": 0} if port else {}).encode()
                self.send_response(200 if port else 410 if room in lost else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def remote(self, room: int) -> Remote:
        return Remote(room, "127.0.0.1", self.port)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class Network:
    """A proxy between a sink and the source at `port`. A test can set at any time what it does to bytes to
    the sink (`down`) and to the source (`up`)."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.stalled = False
        self.passed = {"down": 0, "up": 0}
        self.cut_at = {"down": 1 << 60, "up": 1 << 60}  # after this many bytes
        self.corrupt_at = {"down": -1, "up": -1}
        self.most = 1 << 16  # maximum of bytes at a time
        self._ends: list[socket.socket] = []
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for way, a, b in (("up", near, far), ("down", far, near)):
                    self._threads.append(threading.Thread(target=self._pass, args=(way, a, b), daemon=True))
                    self._threads[-1].start()

    def _pass(self, way: str, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(a.recv(self.most)):
                while self.stalled and not self._closed:
                    time.sleep(0.005)
                at = self.passed[way]
                if 0 <= self.corrupt_at[way] - at < len(data):
                    data[self.corrupt_at[way] - at] ^= 0x10
                left = max(0, self.cut_at[way] - at)
                self.passed[way] += len(data)
                b.sendall(data[:left])
                if left < len(data):
                    break
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # it may just add a pair
        self._server.close()
        self.cut()
        for each in self._threads:
            each.join()
        for end in self._ends:
            end.close()


@contextlib.contextmanager
def ends(
    prefill: Identity = IDENTITY, decode: Identity = IDENTITY, backend: str = "tcp", timeout: float = TIMEOUT
) -> Iterator[tuple[Prefill, Decode, Bootstrap]]:
    one, other, port = Prefill(prefill, backend, timeout), Decode(decode, backend, timeout), Bootstrap()
    try:
        yield one, other, port
    finally:
        other.sink.close()
        one.source.close()
        port.close()
