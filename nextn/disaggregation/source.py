"""The prefill side of KV transfer: the requests whose pages sinks may fetch, and the sinks that fetch them.
turns.py decides what is sent next, and transports.py sends it.

Each request that was offered comes out of `poll` once, unless it was withdrawn. Either its pages were
fetched, or the source gave up: no sink asked in time, the other side ended the transfer, or its connection
was lost.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from nextn.disaggregation.checksum import checksum, prompt_hash
from nextn.disaggregation.connection import Connection
from nextn.disaggregation.early import Early, EarlyRooms
from nextn.disaggregation.endpoint import Endpoint
from nextn.disaggregation.framing import Body, Broken
from nextn.disaggregation.identity import Identity
from nextn.disaggregation.layout import flat
from nextn.disaggregation.memory_listener import MemoryListener
from nextn.disaggregation.messages import (
    MOST_TEXT,
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
from nextn.disaggregation.offer import Offer
from nextn.disaggregation.page_copies import PageCopies
from nextn.disaggregation.transports import MemoryTransport, SocketTransport, Transport
from nextn.disaggregation.turns import Piece, Turns
from nextn.disaggregation.writes import Writes

CONNECTIONS = 256


class OfferEnd(NamedTuple):
    """The end of an offer. error: why its pages were not fetched; None: they were."""

    rid: str
    error: str | None


class PageSource(Endpoint):
    """Listens on a port of `host`. port: 0 for a free one."""

    def __init__(self, identity: Identity, backend: str, host: str, timeout: float, port: int = 0) -> None:
        super().__init__("kv-source", identity, backend, timeout)
        self._sinks = self._place()
        sizes = self.layout.page_bytes, self.layout.piece_bytes
        self._transport: Transport
        if self._sinks is None:
            self._transport = SocketTransport(self, *sizes)
            self._turns = Turns(self.layout, None, self.wake_engine)
        else:
            self._transport = transport = MemoryTransport(self, self._sinks, sizes[0])
            self._turns = Turns(self.layout, transport.slots, self.wake_engine)
        self._offers: dict[str, Offer] = {}
        self._rooms: dict[int, Offer] = {}
        self._transfers: dict[tuple[Connection, int], Offer] = {}
        self._early = EarlyRooms(timeout)
        self._lent: dict[Piece, tuple[Connection, Pages]] = {}  # slots taken between `memory` and `put`
        self._ended: deque[OfferEnd] = deque()
        self._blocked: float | None = None  # since when the engine waits for pages
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, port), family=family, backlog=128)
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self.watch(self._server, self._accept)
        self.start()

    def _place(self) -> MemoryListener | Writes | None:
        """Where the sinks' memory is kept. None: pieces go through the connections."""
        match self.backend:
            case "shm":
                return MemoryListener(self, self.layout.piece_bytes, self.wake_engine)
            case "nixl":
                return Writes(self.layout.piece_bytes, self.timeout)
        return None

    # The engine's thread

    def offer(self, rid: str, room: int, tokens: Sequence[int]) -> None:
        """Allows a sink to fetch this request's pages. Raises ValueError if the room is in use."""
        offer = Offer(rid, room, len(tokens), prompt_hash(tokens))
        with self.lock:
            assert rid not in self._offers
            if room in self._rooms:
                raise ValueError(f"bootstrap room {room} is in use")
            self._offers[rid] = self._rooms[room] = offer
            early = self._early.offered(room)
            self.stats.active += 1
            if self.broken is not None:
                self._end(offer, self.broken)
            elif early is not None:
                self._attach(offer, early)

    def committed(self, rid: str, slots: int) -> None:
        """The first `slots` slots are final now. The number falls when a request is retracted."""
        with self.lock:
            if (offer := self._offers.get(rid)) is not None:
                offer.committed = slots

    def finished(self, rid: str, slots: int, cached_tokens: int) -> None:
        """The whole prompt is computed; it has `slots` slots."""
        with self.lock:
            if (offer := self._offers.get(rid)) is not None:
                offer.committed = offer.slots = slots
                offer.cached_tokens, offer.finished = cached_tokens, time.monotonic()
                self._end_of_pages(offer)

    def withdraw(self, rid: str) -> None:
        """The request ended before its pages were fetched. It does not come out of `poll`. Tells the other
        side."""
        with self.lock:
            if (offer := self._offers.get(rid)) is not None:
                self._forget(offer, "the prefill server ended the request")
            self._ended = deque(each for each in self._ended if each.rid != rid)

    def wanted(self) -> Piece | None:
        """Returns the next pages to copy; requests take turns. None: there are none, or too many bytes are in
        flight. Then `fileno` becomes readable when it is time to ask again. A caller that stops before None
        must call again itself."""
        with self.lock:
            return self._turns.next()

    def copy(self, piece: Piece, copies: PageCopies, pages: Sequence[int]) -> None:
        """Copies this piece from `pages` of the pool and sends it. Without `copies`, use `memory` and
        `put`."""
        with self.lock:
            if (offer := self._offer_of(piece)) is not None:
                connection, message = self._begin_pages(offer, piece)
                self._transport.copy(connection, message, copies, pages)
                self._end_of_pages(offer)

    def memory(self, piece: Piece) -> Tensor:
        """Returns memory into which this piece can be copied. `put` must follow. The memory is still in the
        cache, or is the sink's. `put` also takes data in other memory."""
        with self.lock:
            if (offer := self._offer_of(piece)) is None:
                data = np.empty(piece.pages * self.layout.page_bytes, np.uint8)
            else:
                assert offer.connection is not None
                pages = Pages(offer.transfer, piece.first_page, piece.pages, 0)
                data = self._transport.memory(offer.connection, pages)
                self._lent[piece] = offer.connection, pages
            return self.layout.tensor(data)

    def put(self, piece: Piece, data: Tensor) -> None:
        """Sends this piece. data: [layers, slots, width], contiguous, on the host; nobody changes it any
        more."""
        with self.lock:
            lent = self._lent.pop(piece, None)
            if (offer := self._offer_of(piece)) is not None:
                connection, message = self._begin_pages(offer, piece)
                message.memory_slot = -1 if lent is None else lent[1].memory_slot
                body = flat(data)
                message.checksum = checksum(body)
                self._transport.send(connection, message, body)
                self._end_of_pages(offer)
            elif lent is not None:
                self._transport.give_back(lent[0], lent[1].memory_slot)

    def blocked(self, blocked: bool) -> None:
        """blocked: whether the engine can do nothing until pages are freed. Decode servers that lack room for
        prompts computed here may wait for a prompt that this engine lacks room for. After the timeout the
        oldest is given up."""
        with self.lock:
            if not blocked:
                self._blocked = None
            elif self._blocked is None:
                self._blocked = time.monotonic()

    def poll(self) -> list[OfferEnd]:
        with self.lock:
            ended, self._ended = list(self._ended), deque()
        return ended

    def close(self) -> None:
        super().close()
        self._server.close()
        if self._sinks is not None:
            self._sinks.close()

    # With the lock held

    def _offer_of(self, piece: Piece) -> Offer | None:
        """None: the offer has ended meanwhile."""
        offer = self._offers.get(piece.rid)
        return offer if offer is not None and offer.number == piece.offer else None

    def _begin_pages(self, offer: Offer, piece: Piece) -> tuple[Connection, Pages]:
        assert offer.connection is not None
        self._turns.put(offer, piece)
        self.stats.pages += piece.pages
        self.stats.bytes += piece.pages * self.layout.page_bytes
        slots = min(offer.put_page * self.layout.page_size, offer.committed)
        return offer.connection, Pages(offer.transfer, piece.first_page, piece.pages, slots)

    def _end_of_pages(self, offer: Offer) -> None:
        if offer.slots is None or offer.begun is None or offer.done:
            return
        if offer.put_page >= self.layout.pages(offer.slots):
            offer.done = True
            done = Done(offer.transfer, offer.slots, offer.cached_tokens)
            self.call(self._send_done, offer.connection, done)

    def _attach(self, offer: Offer, early: Early) -> None:
        """Gives the room to the sink that asked for it, or tells it why not."""
        connection, want = early.connection, early.want
        error = None
        if (connection, want.transfer) in self._transfers:
            error = "a transfer number was used twice"
        elif offer.connection is not None:
            error = f"bootstrap room {want.room} was requested twice"
        elif (want.tokens, want.prompt) != (offer.tokens, offer.prompt):
            error = (
                f"another prompt: {want.tokens} tokens on the decode server, {offer.tokens} on the "
                "prefill server"
            )
        if error is not None:
            self.call(connection.send, Abort(want.transfer, error))
            return
        offer.connection, offer.transfer = connection, want.transfer
        self._transfers[connection, want.transfer] = offer
        if early.have_pages is not None:
            self._begin(offer, early.have_pages)

    def _begin(self, offer: Offer, have_pages: int) -> None:
        assert offer.connection is not None
        if have_pages > self.layout.pages(offer.tokens):
            self._end(
                offer, f"the decode server claims {have_pages} pages of a prompt of {offer.tokens} tokens"
            )
            return
        offer.begun = time.monotonic()
        offer.next_page = offer.put_page = have_pages
        self._turns.offers.append(offer)
        self._end_of_pages(offer)
        self.wake_engine()

    def _forget(self, offer: Offer, error: str | None) -> None:
        """Ends an offer: its other pages are not sent, and no sink can ask for it. error: sent to the other
        side; None: it knows already."""
        del self._offers[offer.rid], self._rooms[offer.room]
        self._early.ended(offer.room, error or "its pages have already been fetched")
        self.stats.active -= 1
        if offer.connection is None:
            return
        if offer.begun is not None:
            self._turns.offers.remove(offer)
        self._transfers.pop((offer.connection, offer.transfer), None)
        self._turns.release(offer.connection, offer.handed)
        if error is not None:
            self.call(offer.connection.drop, offer.transfer, error)

    def _end(self, offer: Offer, error: str | None) -> None:
        self._forget(offer, error)
        if error is None:
            self.stats.finished += 1
            assert offer.begun is not None
            self.stats.seconds += time.monotonic() - offer.begun
        else:
            self.stats.failed += 1
        self._ended.append(OfferEnd(offer.rid, error))
        self.wake_engine()

    # The I/O thread

    def _accept(self) -> None:
        try:
            end, address = self._server.accept()
        except BlockingIOError:
            return
        except OSError:  # for example too many open files; the socket stays readable
            time.sleep(0.05)
            return
        if len(self.connections) >= CONNECTIONS:
            end.close()
            return
        connection = self.add(end, f"{address[0]}:{address[1]}")
        with self.lock:
            self._turns.in_flight[connection] = 0

    def dropped(self, connection: Connection, pages: Pages) -> bool:
        if (connection, pages.transfer) in self._transfers:
            return False
        self._transport.give_back(connection, pages.memory_slot)
        self.sent(connection, self._turns.charge(pages.pages))
        return True

    def needs_polling(self) -> bool:
        return isinstance(self._sinks, Writes) and self._sinks.busy

    def poll_transfers(self) -> None:
        if isinstance(self._sinks, Writes):
            for connection, error in self._sinks.poll():
                self.lost_by(connection, error)

    def _send_done(self, connection: Connection, done: Done) -> None:
        self._transport.send_done(connection, done, lambda: self._say_done(connection, done))

    def _say_done(self, connection: Connection, done: Done) -> None:
        if (connection, done.transfer) in self._transfers:
            connection.send(done)

    def body_for(self, connection: Connection, message: AnyMessage, size: int) -> None:
        if size:
            raise Broken("a body was sent to the prefill server")

    def sent(self, connection: Connection, charge: int) -> None:
        if charge:
            with self.lock:
                self._turns.release(connection, charge)

    def on_message(self, connection: Connection, message: AnyMessage, body: Body | None) -> None:
        if connection.hello is None:
            if not isinstance(message, Hello):
                raise Broken("the first message is not Hello")
            self._welcome(connection, message)
            return
        with self.lock:
            match message:
                case Want():
                    self._asked_for(connection, message)
                case Begin(transfer, have_pages):
                    self._begun(connection, transfer, have_pages)
                case Taken(transfer):
                    offer = self._transfers.get((connection, transfer))
                    if offer is not None:
                        if not offer.done:
                            raise Broken("the decode server acknowledged pages that were not sent")
                        self._end(offer, None)
                case Abort(transfer, error):
                    self._aborted(connection, transfer, error)
                case Read(slot):
                    self._read_slot(connection, slot)
                case Memory() if isinstance(self._sinks, Writes) and not connection.closing:
                    self._sinks.enter(connection, message)
                    self.wake_engine()
                case Ping():
                    pass
                case _:
                    raise Broken(f"unexpected message {type(message).__name__}")

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        connection.hello = hello
        door, key = "", b""
        if isinstance(self._sinks, MemoryListener):
            door, key = self._sinks.name, self._sinks.key(connection)
        own = Hello(self.identity, self.backend, self.timeout, door, key)
        connection.send(own)
        if different := hello.differences(own):
            connection.send(Refused("; ".join(different)[:MOST_TEXT]))
            connection.closing = True

    def _read_slot(self, connection: Connection, slot: int) -> None:
        if not isinstance(self._transport, MemoryTransport):
            raise Broken("the decode server read a memory slot, but there are none")
        self._transport.read(connection, slot)
        self._turns.release(connection, self.layout.piece_bytes)

    def _asked_for(self, connection: Connection, want: Want) -> None:
        if (connection, want.transfer) in self._transfers:
            raise Broken("a transfer number was used twice")
        if (offer := self._rooms.get(want.room)) is not None:
            self._attach(offer, Early(connection, want, 0.0))
            return
        if (error := self._early.wait(connection, want)) is not None:
            connection.send(Abort(want.transfer, error))

    def _begun(self, connection: Connection, transfer: int, have_pages: int) -> None:
        if (offer := self._transfers.get((connection, transfer))) is None:
            self._early.begin(connection, transfer, have_pages)
        elif offer.begun is None:
            self._begin(offer, have_pages)
        else:
            raise Broken("a transfer was begun twice")

    def _aborted(self, connection: Connection, transfer: int, error: str) -> None:
        offer = self._transfers.get((connection, transfer))
        if offer is not None:
            self._end(offer, f"the decode server ended the transfer: {error}")
        self._early.forget(connection, transfer)

    def on_connect(self, connection: Connection) -> None:
        raise AssertionError("a source makes no connections")

    def on_disconnect(self, connection: Connection, error: str) -> None:
        with self.lock:
            self._turns.in_flight.pop(connection, None)
            if self._sinks is not None:
                self._sinks.forget(connection)
            self._early.forget(connection)
            for (owner, _), offer in list(self._transfers.items()):
                if owner is connection:
                    self._end(offer, f"the connection to the decode server ended: {error}")

    def tick(self, now: float) -> None:
        with self.lock:
            for early, error in self._early.too_late(now):
                early.connection.send(Abort(early.want.transfer, error))
            for offer in list(self._offers.values()):
                waited = offer.connection is None and offer.slots is not None
                if waited and now - offer.finished > self.timeout:
                    self._end(offer, f"no decode server requested its pages within {self.timeout:g} s")
            if self._blocked is not None and now - self._blocked > self.timeout:
                idle = [
                    each for each in self._offers.values() if each.slots is not None and each.begun is None
                ]
                if idle:
                    oldest = min(idle, key=lambda each: each.finished)
                    self._end(oldest, f"other prompts waited {self.timeout:g} s for the memory of its pages")
                    self._blocked = now

    def on_failure(self, error: str) -> None:
        self._early.clear()
        for offer in list(self._offers.values()):
            self._end(offer, error)
