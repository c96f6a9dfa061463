"""Moves experts between slots, on all ranks at once: packed bytes, as the kernels read them.

An expert goes from each rank of its shard to the rank with the same slice of the other shard: sources write
it into an area, it is handed over, destinations read it. Within a shard it is copied where it lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from nextn.distributed.exchange import Exchange
from nextn.distributed.expert_share import ExpertTable
from nextn.distributed.expert_world import Bytes, ExpertWorld, Parcel
from nextn.distributed.move_order import in_order, rounds
from nextn.distributed.placement import Move

STAGING = 64 << 20  # bytes for experts on their way
LINE = 64


class ExpertMover:
    """tables: this rank's, of layers. staging: bytes; there is always room for one expert. To be made after a
    step, by all ranks. Raises PeerGone."""

    def __init__(
        self,
        world: ExpertWorld,
        tables: Sequence[ExpertTable],
        exchange: Exchange,
        staging: int = STAGING,
    ) -> None:
        self._world, self._share = world, world.share
        self._own = self._share.own
        largest = max(sum(map(len, self._parts(table, self._own.start))) for table in tables)
        largest = int(exchange.of_all(np.array(largest)).max())  # slices may differ
        self._each = -(-largest // LINE) * LINE
        self._most = max(1, staging // (self._each * self._share.slices))  # experts in a round
        self._staging = world.area(self._most * self._share.slices * self._each)

    def move(self, table: ExpertTable, moves: Iterable[Move]) -> None:
        """In this layer. A source is the expert that was in this slot before the first of the moves. To be
        called by all ranks with the same ones. Raises PeerGone."""
        order = in_order(moves)
        unread = Counter(move.source for move in order)  # how many moves are still to read each slot
        aside: dict[int, Bytes] = {}  # experts of own slots that were written before all had read them
        for some in rounds(order, self._crosses, self._most):
            self._round(table, some, unread, aside)
        assert not aside

    def _round(
        self, table: ExpertTable, some: Sequence[Move], unread: Counter[int], aside: dict[int, Bytes]
    ) -> None:
        def read(slot: int, to: Bytes) -> None:
            if slot in aside:
                to[: len(aside[slot])] = aside[slot]
            else:
                _copy(self._parts(table, slot), to)

        def was_read(slot: int) -> None:
            unread[slot] -= 1
            if not unread[slot]:
                aside.pop(slot, None)

        crossing = [move for move in some if self._crosses(move)]
        staged = {move.slot: self._place(i) for i, move in enumerate(crossing)}
        for move in crossing:
            if move.source in self._own:
                read(move.source, staged[move.slot])
            was_read(move.source)
        if crossing:
            self._world.hand_over([p for i, move in enumerate(crossing) for p in self._parcels(i, move)])
        for move in some:
            if move.slot in self._own:
                found = staged.get(move.slot)
                if found is None:
                    found = np.empty(self._each, np.uint8)
                    read(move.source, found)
                parts = self._parts(table, move.slot)
                if unread[move.slot]:
                    aside[move.slot] = np.concatenate(parts)
                _take(parts, found)
            if move.slot not in staged:
                was_read(move.source)
        if crossing:
            self._world.meet()

    def _crosses(self, move: Move) -> bool:
        each = len(self._own)
        return move.slot // each != move.source // each

    def _parts(self, table: ExpertTable, slot: int) -> list[Bytes]:
        member = slot - self._own.start
        return [*table.gate_up.member(member), *table.down.member(member)]

    def _parcels(self, i: int, move: Move) -> Iterator[Parcel]:
        """Of each slice of the i-th expert that crosses."""
        each, slices = len(self._own), self._share.slices
        source, to = move.source // each * slices, move.slot // each * slices
        for part in range(slices):
            yield Parcel(source + part, to + part, self._place(i, part))

    def _place(self, i: int, part: int | None = None) -> Bytes:
        """Where the i-th expert of a round is staged: a slice of it. part: None: this rank's."""
        at = (i * self._share.slices + (self._share.slice if part is None else part)) * self._each
        return self._staging[at : at + self._each]


def _copy(parts: Iterable[Bytes], to: Bytes) -> None:
    at = 0
    for part in parts:
        to[at : at + len(part)] = part
        at += len(part)


def _take(parts: Iterable[Bytes], found: Bytes) -> None:
    at = 0
    for part in parts:
        part[:] = found[at : at + len(part)]
        at += len(part)
