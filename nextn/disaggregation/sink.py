"""The decode side of KV transfer: fetches the pages of prompts and verifies their checksums.

Each request that was wanted and not cancelled ends with exactly one `Ended`, after all `Arrived` of its
pages. If the pool is in this process's memory, this thread writes pages into it itself: it receives, verifies
and copies a piece while the piece is in its cache. Nobody reads the pages before `Ended` says how many slots
are complete. Only `cancel` waits for the writing: the engine's steps do not.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nextn.disaggregation.buffers import Buffers
from nextn.disaggregation.checksum import checksum, prompt_hash
from nextn.disaggregation.connection import Connection
from nextn.disaggregation.endpoint import Endpoint
from nextn.disaggregation.framing import TAIL, ArrayBody, Body, Broken
from nextn.disaggregation.identity import Identity
from nextn.disaggregation.landing import CHUNK, Arriving, Landing
from nextn.disaggregation.lookup import Address, Lookups
from nextn.disaggregation.memory import Slots, hand_in, slots_of
from nextn.disaggregation.messages import (
    Abort,
    AnyMessage,
    Begin,
    Done,
    Hello,
    Memory,
    Pages,
    Ping,
    Read,
    Refused,
    Taken,
    Want,
)
from nextn.disaggregation.nixl_agent import Agent, Region
from nextn.disaggregation.remote import Remote

CONNECTIONS = 256
UNDELIVERED = 16 << 20  # bytes that the engine has not taken yet; above it, the thread stops reading
POLL_BYTES = 8 << 20


class Arrived(NamedTuple):
    """Pages of a request. data: [layers, slots, width]. A request's pages arrive in order and without
    gaps."""

    rid: str
    first_page: int
    pages: int
    data: Tensor


class Ended(NamedTuple):
    """The end of a fetch. slots: number of complete slots, including those from `begin`. error: why slots are
    missing; None: all arrived."""

    rid: str
    slots: int
    cached_tokens: int
    error: str | None


@dataclass(slots=True, eq=False)
class _Fetch:
    rid: str
    remote: Remote
    tokens: int
    prompt: bytes
    have: int = 0
    slots: int = 0
    next_page: int = 0
    begun: float | None = None  # when `begin` was called; None: not yet
    landing: Landing | None = None  # None: the engine writes the pages
    connection: Connection | None = None
    transfer: int = -1  # -1: Want is not sent yet


class PageSink(Endpoint):
    def __init__(self, identity: Identity, backend: str, timeout: float) -> None:
        super().__init__("kv-sink", identity, backend, timeout)
        self._hello = Hello(identity, backend, timeout)
        self._fetches: dict[str, _Fetch] = {}
        self._inbox: deque[Arrived | Ended] = deque()
        self._undelivered = 0  # bytes
        self._transfers: dict[tuple[Connection, int], _Fetch] = {}
        self._last_transfer = 0
        self._engines: dict[Any, Connection] = {}  # by address of the source
        self._buffers, self._chunks = Buffers(self.layout.piece_bytes + TAIL), Buffers(CHUNK)
        self._writing = threading.Lock()  # held while the pool is written
        self._memories: dict[Connection, Slots] = {}
        self._nixl = Agent() if backend == "nixl" else None
        self._lookups = Lookups(timeout)
        self.start()

    # The engine's thread

    def want(self, rid: str, remote: Remote, tokens: Sequence[int]) -> None:
        """The request will fetch its pages: makes the prefill server keep them."""
        fetch = _Fetch(rid, remote, len(tokens), prompt_hash(tokens))
        with self.lock:
            assert rid not in self._fetches
            self._fetches[rid] = fetch
            self.stats.active += 1
            if self.broken is not None:
                self._end(fetch, self.broken)
                return
            if not 0 <= remote.room < 1 << 63:
                self._end(fetch, f"bootstrap room {remote.room}: it must be between 0 and 2**63")
                return

        def found(address: Address | None, error: str) -> None:
            self.call(self._found, fetch, address, error)

        self._lookups.ask(remote, found, lambda: self._fetches.get(rid) is fetch)

    def begin(self, rid: str, have: int, landing: Landing | None = None) -> None:
        """Pages may arrive now. have: number of slots that are here already, in whole pages. landing: where
        pages are written until the request ends or is cancelled; None: they come out of `poll`."""
        assert have % self.layout.page_size == 0
        with self.lock:
            if (fetch := self._fetches.get(rid)) is None:
                return  # it has ended; `poll` returns the error
            assert fetch.begun is None, "`begin` was called twice"
            fetch.begun, fetch.landing = time.monotonic(), landing
            fetch.have = fetch.slots = have
            fetch.next_page = have // self.layout.page_size
            if fetch.connection is not None and fetch.transfer >= 0:
                self.call(fetch.connection.send, Begin(fetch.transfer, fetch.next_page))

    def cancel(self, rid: str) -> None:
        """Ends a request and tells the other side. Afterwards `poll` returns nothing of it, and none of its
        pages are written."""
        with self.lock:
            if (fetch := self._fetches.pop(rid, None)) is not None:
                self.stats.active -= 1
                self._leave(fetch, "cancelled")
            if any(each.rid == rid for each in self._inbox):
                self._inbox = deque(each for each in self._inbox if each.rid != rid)
                self._undelivered = sum(_size(each) for each in self._inbox)
                self._unpause()
        with self._writing:  # the thread may be writing pages of this request; it looks before the next ones
            pass

    def poll(self, most_bytes: int = POLL_BYTES) -> list[Arrived | Ended]:
        """Returns events in order, with at most `most_bytes` bytes of pages, but at least one event if there
        are any."""
        events: list[Arrived | Ended] = []
        with self.lock:
            while self._inbox:
                size = _size(self._inbox[0])
                if events and size > most_bytes:
                    self.wake_engine()
                    break
                most_bytes -= size
                self._undelivered -= size
                events.append(self._inbox.popleft())
            self._unpause()
        return events

    def close(self) -> None:
        self._lookups.close()
        super().close()
        if self._nixl is not None:
            for connection in list(self._memories):
                self._forget_memory(connection)
            self._nixl.close()

    # With the lock held

    def _unpause(self) -> None:
        if self.paused and self._undelivered <= UNDELIVERED // 2:
            self.call(self._read_on)

    def _leave(self, fetch: _Fetch, error: str | None) -> None:
        """Detaches a request from its connection. error: sent to the other side; None: it knows already."""
        connection, fetch.connection = fetch.connection, None
        if connection is None:
            return
        if self._transfers.pop((connection, fetch.transfer), None) is not None and error is not None:
            self.call(connection.send, Abort(fetch.transfer, error))

    def _end(self, fetch: _Fetch, error: str | None, cached_tokens: int = 0) -> None:
        if self._fetches.get(fetch.rid) is not fetch:
            return  # cancelled
        del self._fetches[fetch.rid]
        self._leave(fetch, None)
        self.stats.active -= 1
        if error is None and fetch.begun is not None:
            self.stats.finished += 1
            self.stats.seconds += time.monotonic() - fetch.begun
        else:
            self.stats.failed += 1
        self._inbox.append(Ended(fetch.rid, fetch.slots, cached_tokens, error))
        self.wake_engine()

    # The I/O thread

    def _found(self, fetch: _Fetch, address: Address | None, error: str) -> None:
        with self.lock:
            if self._fetches.get(fetch.rid) is not fetch:
                return
            if address is None:
                self._end(fetch, error)
                return
            try:
                connection = self._connection(address)
            except OSError as problem:
                self._end(fetch, f"prefill server {address[1][0]}:{address[1][1]}: {problem}")
                return
            fetch.connection = connection
            if connection.hello is not None:
                self._ask(fetch, connection)

    def _connection(self, address: Address) -> Connection:
        """Returns the connection to this address, or starts a new one. Raises OSError."""
        family, where = address
        if (kept := self._engines.get(where)) is not None:
            return kept
        if len(self.connections) >= CONNECTIONS:
            self._close_idle()
        end = socket.socket(family, socket.SOCK_STREAM)
        end.setblocking(False)
        code = end.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            end.close()
            raise OSError(code, errno.errorcode.get(code, "cannot connect"))
        connection = self.add(end, f"{where[0]}:{where[1]}", connecting=True)
        self._engines[where] = connection
        return connection

    def _close_idle(self) -> None:
        """Raises OSError if every connection is in use."""
        used = {fetch.connection for fetch in self._fetches.values()}
        idle = [connection for connection in self.connections if connection not in used]
        if not idle:
            raise OSError(errno.EMFILE, f"all {CONNECTIONS} connections to prefill servers are in use")
        self.lose(
            min(idle, key=lambda each: each.opened), "idle, and closed to make room for another connection"
        )

    def on_connect(self, connection: Connection) -> None:
        connection.send(self._hello)

    def _ask(self, fetch: _Fetch, connection: Connection) -> None:
        self._last_transfer += 1
        fetch.transfer = self._last_transfer
        self._transfers[connection, fetch.transfer] = fetch
        connection.send(Want(fetch.transfer, fetch.remote.room, fetch.tokens, fetch.prompt))
        if fetch.begun is not None:
            connection.send(Begin(fetch.transfer, fetch.next_page))

    def _read_on(self) -> None:
        if self.paused:
            self.paused = False
            for connection in self.connections:
                connection.last_received = time.monotonic()

    def body_for(self, connection: Connection, message: AnyMessage, size: int) -> Body | None:
        if not isinstance(message, Pages) or connection.hello is None:
            if size:
                raise Broken(f"{size} bytes without pages")
            return None
        most = self.layout.piece_pages
        expected = 0 if connection in self._memories else message.pages * self.layout.page_bytes + TAIL
        if not 0 < message.pages <= most or size != expected:
            raise Broken(f"invalid size: {message.pages} pages in {size} bytes")
        if not size:
            return None
        fetch = self._transfers.get((connection, message.transfer))
        if fetch is not None and fetch.landing is not None and fetch.landing.copies.sockets is not None:
            self._check_place(fetch, message)
            return self._arriving(fetch, fetch.landing, message)
        return ArrayBody(self._buffers.take(size))

    def _arriving(self, fetch: _Fetch, landing: Landing, pages: Pages) -> Arriving:
        chunk, wanted = self._chunks.take(CHUNK), lambda: self._wanted(fetch)
        return Arriving(landing, pages.first_page, pages.pages, chunk, self._writing, wanted)

    def _wanted(self, fetch: _Fetch) -> bool:
        """Whether the request still owns its pages. Needs no lock."""
        return self._fetches.get(fetch.rid) is fetch

    def sent(self, connection: Connection, charge: int) -> None:
        pass

    def on_message(self, connection: Connection, message: AnyMessage, body: Body | None) -> None:
        if isinstance(message, Refused):
            raise Broken(f"refused: {message.error}")
        if connection.hello is None:
            self._welcomed(connection, message)
            return
        match message:
            case Pages():
                self._pages(connection, message, body)
            case Done():
                self._done(connection, message)
            case Abort(transfer, error):
                with self.lock:
                    if (fetch := self._transfers.get((connection, transfer))) is not None:
                        self._end(fetch, error)
            case Ping():
                pass
            case _:
                raise Broken(f"unexpected message {type(message).__name__}")

    def _welcomed(self, connection: Connection, message: AnyMessage) -> None:
        if not isinstance(message, Hello):
            raise Broken("the first message is not Hello")
        if different := self._hello.differences(message):
            raise Broken("refused: " + "; ".join(different))
        if self.backend == "shm":
            self._memories[connection] = hand_in(message, self.layout.piece_bytes)
        elif self._nixl is not None:
            region = self._nixl.region(slots_of(self.layout.piece_bytes), self.layout.piece_bytes)
            self._memories[connection] = region
            connection.send(Memory(self._nixl.metadata(region), region.address))
        connection.hello = message
        with self.lock:
            for fetch in self._fetches.values():
                if fetch.connection is connection:
                    self._ask(fetch, connection)

    def needs_polling(self) -> bool:
        return self._nixl is not None and not self.paused and self.stats.active > 0

    def poll_transfers(self) -> None:
        if self._nixl is not None and self._memories:
            self._nixl.progress()

    def _forget_memory(self, connection: Connection) -> None:
        memory = self._memories.pop(connection, None)
        if self._nixl is not None and isinstance(memory, Region):
            self._nixl.give_back(memory)

    def _pages(self, connection: Connection, pages: Pages, body: Body | None) -> None:
        """body: None if the pages are in the sink's memory, where a source may still write."""
        fetch = self._transfers.get((connection, pages.transfer))
        data = self._in_memory(connection, pages) if body is None else None
        if fetch is not None:  # None: it was cancelled
            self._check_place(fetch, pages)
            if isinstance(body, Arriving):
                _prove(body.found, body.expected)
                self._landed(fetch, pages)
            elif isinstance(body, ArrayBody):
                self._take(fetch, pages, body.data, body.expected)
            elif data is not None:
                self._take(fetch, pages, data if fetch.landing else self._own(data), pages.checksum)
        if data is not None:
            connection.send(Read(pages.memory_slot))

    def _in_memory(self, connection: Connection, pages: Pages) -> NDArray[np.uint8]:
        memory = self._memories[connection]
        if not 0 <= pages.memory_slot < len(memory):
            raise Broken(f"there is no slot {pages.memory_slot}; there are {len(memory)}")
        return memory[pages.memory_slot][: pages.pages * self.layout.page_bytes]

    def _own(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns a copy that the source cannot change."""
        copy = self._buffers.take(len(data))
        copy[:] = data
        return copy

    def _check_place(self, fetch: _Fetch, pages: Pages) -> None:
        if fetch.begun is None:
            raise Broken("pages arrived before they were requested")
        size = self.layout.page_size
        begin, end = pages.first_page * size, (pages.first_page + pages.pages) * size
        if (
            pages.first_page != fetch.next_page
            or fetch.slots != begin  # the page before was partly filled, so it was the last
            or not end - size < pages.slots <= min(end, fetch.tokens)
        ):
            raise Broken(f"unexpected pages {pages.first_page} to {pages.first_page + pages.pages}")

    def _take(self, fetch: _Fetch, pages: Pages, data: NDArray[np.uint8], expected: int) -> None:
        """data: a copy that the source cannot change, or any memory if the request has a landing."""
        if fetch.landing is None:
            _prove(checksum(data), expected)
            self._deliver(fetch, pages, data)
            return
        with self._writing:
            if not self._wanted(fetch):
                return
            found = fetch.landing.take(pages.first_page, pages.pages, data)
        _prove(found, expected)
        self._landed(fetch, pages)

    def _landed(self, fetch: _Fetch, pages: Pages) -> None:
        with self.lock:
            if self._fetches.get(fetch.rid) is fetch:
                self._count(fetch, pages)

    def _deliver(self, fetch: _Fetch, pages: Pages, body: NDArray[np.uint8]) -> None:
        with self.lock:
            if self._fetches.get(fetch.rid) is not fetch:
                return
            self._count(fetch, pages)
            data = self.layout.tensor(body)
            self._inbox.append(Arrived(fetch.rid, pages.first_page, pages.pages, data))
            self._undelivered += len(body)
            self.paused = self.paused or self._undelivered > UNDELIVERED
            self.wake_engine()

    def _count(self, fetch: _Fetch, pages: Pages) -> None:
        fetch.next_page += pages.pages
        fetch.slots = pages.slots
        self.stats.pages += pages.pages
        self.stats.bytes += pages.pages * self.layout.page_bytes

    def _done(self, connection: Connection, done: Done) -> None:
        with self.lock:
            fetch = self._transfers.get((connection, done.transfer))
            if fetch is None:
                return
            if fetch.begun is None or (done.slots != fetch.slots and done.slots > fetch.have):
                raise Broken(f"{fetch.slots} of {done.slots} slots arrived")
            connection.send(Taken(done.transfer))
            self._end(fetch, None, done.cached_tokens)

    def on_disconnect(self, connection: Connection, error: str) -> None:
        with self.lock:
            self._forget_memory(connection)
            for where, kept in list(self._engines.items()):
                if kept is connection:
                    del self._engines[where]
            for fetch in list(self._fetches.values()):
                if fetch.connection is connection:
                    self._end(fetch, f"prefill server {connection.name}: {error}")

    def tick(self, now: float) -> None:
        pass

    def on_failure(self, error: str) -> None:
        for fetch in list(self._fetches.values()):
            self._end(fetch, error)


def _prove(found: int, expected: int) -> None:
    if found != expected:
        raise Broken("a byte of a page was corrupted on the way")


def _size(event: Arrived | Ended) -> int:
    return event.data.nbytes if isinstance(event, Arrived) else 0
