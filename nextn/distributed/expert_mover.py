"""Moves experts between slots, on all ranks at the same time, as the bytes that the kernels read.

Each rank of the source shard sends its slice of an expert to the rank with the same slice of the destination
shard: the source writes it into a staging area, it is transferred, the destination reads it. Within a shard,
experts are copied directly.
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

STAGING = 64 << 20  # bytes of the staging area
LINE = 64


class Slots(Protocol):
    """A layer's experts in this rank's slots, its members: `nextn.distributed.expert_share.ExpertTable` for
    the native kernels, `nextn.layers.expert_slots` for the torch model."""

    def size(self, member: int) -> int:
        """Bytes."""

    def read(self, member: int, to: Bytes) -> None:
        """Copies the expert in this slot into the first `size` bytes of `to`."""

    def write(self, member: int, found: Bytes) -> None: ...

    def take(self, placement: Placement, row: int) -> None:
        """Applies this row of the placement."""


class ExpertMover:
    """tables: this rank's, one for each layer. staging: bytes; one expert always fits. All ranks must make it
    at the same time, after a step. Raises PeerGone."""

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
        """Moves experts in one layer. The source of a move is the expert that was in that slot before all
        moves. All ranks must call it with the same moves. Raises PeerGone."""
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
        """The parcels of all slices of the i-th expert that moves to another shard."""
        each, slices = len(self._own), self._share.slices
        source, to = move.source // each * slices, move.slot // each * slices
        for part in range(slices):
            yield Parcel(source + part, to + part, self._place(i, part))

    def _place(self, i: int, part: int | None = None) -> Bytes:
        """The staging area of a slice of the i-th expert of a round. part: the slice; None: this rank's."""
        at = (i * self._share.slices + (self._share.slice if part is None else part)) * self._each
        return self._staging[at : at + self._each]
