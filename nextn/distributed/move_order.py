"""The order in which a layer's experts move, so that little extra memory is needed.

A slot may be overwritten as soon as its old expert has been read. If moves form a cycle, one of the experts
has to be stored elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nextn.distributed.placement import Move


def in_order(moves: Iterable[Move]) -> list[Move]:
    """Orders moves so that a slot is overwritten after all moves that read it, except one slot of each cycle.

    >>> in_order([Move(0, 1), Move(1, 2), Move(2, 5)])
    [Move(slot=0, source=1), Move(slot=1, source=2), Move(slot=2, source=5)]
    >>> in_order([Move(2, 1), Move(0, 2)])
    [Move(slot=0, source=2), Move(slot=2, source=1)]
    """
    source_of = {move.slot: move.source for move in moves}
    readers = Counter(source_of.values())
    free = [slot for slot in source_of if not readers[slot]][::-1]
    order = []
    while source_of:
        slot = free.pop() if free else next(iter(source_of))
        source = source_of.pop(slot)
        order.append(Move(slot, source))
        readers[source] -= 1
        if not readers[source] and source in source_of:
            free.append(source)  # next, so that cycles are closed one by one
    return order


def rounds(moves: Iterable[Move], crosses: Callable[[Move], bool], most: int) -> Iterator[list[Move]]:
    """Cuts the list into rounds in which at most `most` moves go from one shard to another."""
    found: list[Move] = []
    crossing = 0
    for move in moves:
        if crosses(move):
            if crossing == most:
                yield found
                found, crossing = [], 0
            crossing += 1
        found.append(move)
    if found:
        yield found
