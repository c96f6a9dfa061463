"""Moves experts between slots, on all ranks at once: bytes, as the kernels read them.

An expert goes from each rank of its shard to the rank with the same slice of the other shard: sources write
it into an area, it is handed over, destinations read it. Within a shard it is copied where it lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from nextn.distributed.exchange import Exchange
from nextn.distributed.expert_share import Bytes
from nextn.distributed.move_order import in_order, rounds
from nextn.distributed.parcels import Parcel
from nextn.distributed.placement import Move, Placement
from nextn.distributed.step_world import MovesBytes

STAGING = 64 << 20  # bytes for experts on their way
LINE = 64


class Slots(Protocol):
    """A layer's experts in this rank's slots, its members: `nextn.distributed.expert_share.ExpertTable` for
    the native kernels, `nextn.layers.expert_slots` for the torch model."""

    def size(self, member: int) -> int:
        """Bytes."""

    def read(self, member: int, to: Bytes) -> None:
        """Into the first `size` of these."""

    def write(self, member: int, found: Bytes) -> None: ...

    def take(self, placement: Placement, row: int) -> None:
        """From now on experts are where this row of the placement says."""


class ExpertMover:
    """tables: this rank's, of layers. staging: bytes; there is always room for one expert. To be made after a
    step, by all ranks. Raises PeerGone."""

    def __init__(
        self,
        world: MovesBytes,
        tables: Sequence[Slots],
        exchange: Exchange,
        staging: int = STAGING,
    ) -> None:
        self._world, self._share = world, world.share
        self._own = self._share.own
        largest = max(table.size(0) for table in tables)
        largest = int(exchange.of_all(np.array(largest)).max())  # slices may differ
        self._each = -(-largest // LINE) * LINE
        self._most = max(1, staging // (self._each * self._share.slices))  # experts in a round
        self._staging = world.area(self._most * self._share.slices * self._each)

    def move(self, table: Slots, moves: Iterable[Move]) -> None:
        """In this layer. A source is the expert that was in this slot before the first of the moves. To be
        called by all ranks with the same ones. Raises PeerGone."""
        order = in_order(moves)
        unread = Counter(move.source for move in order)  # how many moves are still to read each slot
        aside: dict[int, Bytes] = {}  # experts of own slots that were written before all had read them
        for some in rounds(order, self._crosses, self._most):
            self._round(table, some, unread, aside)
        assert not aside

    def _round(
        self, table: Slots, some: Sequence[Move], unread: Counter[int], aside: dict[int, Bytes]
    ) -> None:
        def read(slot: int, to: Bytes) -> None:
            if slot in aside:
                to[: len(aside[slot])] = aside[slot]
            else:
                table.read(slot - self._own.start, to)

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
                member = move.slot - self._own.start
                if unread[move.slot]:
                    aside[move.slot] = np.empty(self._each, np.uint8)
                    table.read(member, aside[move.slot])
                table.write(member, found)
            if move.slot not in staged:
                was_read(move.source)
        if crossing:
            self._world.meet()

    def _crosses(self, move: Move) -> bool:
        each = len(self._own)
        return move.slot // each != move.source // each

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
