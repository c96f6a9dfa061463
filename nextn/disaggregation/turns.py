"""Decides which pages a source sends next. Requests take turns, and the bytes in flight are limited.

The caller always holds the source's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from nextn.disaggregation.connection import Connection
from nextn.disaggregation.layout import Layout
from nextn.disaggregation.offer import Offer

IN_FLIGHT = 32 << 20  # bytes copied but not sent yet; an idle connection may always send one piece
CONNECTION_IN_FLIGHT = 8 << 20  # bytes per connection; a sink that does not read leaves room for others


class Piece(NamedTuple):
    """A run of pages of one request. Pages are numbered by their place in the prompt."""

    rid: str
    first_page: int
    pages: int
    offer: int  # the number of the request's Offer


class Turns:
    """slots: number of slots in a connection's memory; None if pieces go through the socket. wake_engine: the
    engine then asks again. in_flight: bytes by connection."""

    def __init__(
        self, layout: Layout, slots: Callable[[Connection], int] | None, wake_engine: Callable[[], None]
    ) -> None:
        self._layout, self._slots, self._wake_engine = layout, slots, wake_engine
        self.offers: deque[Offer] = deque()  # the next in turn first
        self.in_flight: dict[Connection, int] = {}
        self.skipped_for_room = False  # the last `next` skipped a request because too much was in flight

    def next(self) -> Piece | None:
        for _ in range(len(self.offers)):
            offer = self.offers[0]
            self.offers.rotate(-1)
            if (n := self._ready_pages(offer)) <= 0:
                continue
            size = self.charge(n)
            assert offer.connection is not None
            if not self._room(offer.connection, size):
                self.skipped_for_room = True
                continue
            self.in_flight[offer.connection] += size
            piece = Piece(offer.rid, offer.next_page, n, offer.number)
            offer.next_page += n
            offer.handed += size
            return piece
        return None

    def put(self, offer: Offer, piece: Piece) -> None:
        """The engine has copied this piece; it is now being sent."""
        assert piece.first_page == offer.put_page
        offer.put_page += piece.pages
        offer.handed -= self.charge(piece.pages)

    def charge(self, pages: int) -> int:
        """Bytes in flight that a piece counts for. In the sink's memory, every piece takes a whole slot."""
        return pages * self._layout.page_bytes if self._slots is None else self._layout.piece_bytes

    def release(self, connection: Connection, charge: int) -> None:
        if charge and connection in self.in_flight:
            self.in_flight[connection] -= charge
            if self.skipped_for_room:
                self.skipped_for_room = False
                self._wake_engine()

    def _ready_pages(self, offer: Offer) -> int:
        """Number of pages in the request's next piece. Only whole pages, except at the prompt's end. 0 or
        less: none."""
        if offer.slots is not None:
            end = self._layout.pages(offer.slots)
        else:
            end = offer.committed // self._layout.page_size
        return min(end - offer.next_page, self._layout.piece_pages)

    def _room(self, connection: Connection, size: int) -> bool:
        used = self.in_flight[connection]
        if self._slots is not None:
            return used < self._slots(connection) * size
        return used == 0 or (
            used + size <= CONNECTION_IN_FLIGHT and sum(self.in_flight.values()) + size <= IN_FLIGHT
        )
