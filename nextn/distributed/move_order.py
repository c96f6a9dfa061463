"""The order in which a layer's experts move, so that little memory holds what is still to be read.

A slot may be written as soon as its old expert has been read. Where experts change places in a circle, one of
them has to be put aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nextn.distributed.placement import Move


def in_order(moves: Iterable[Move]) -> list[Move]:
    """Each slot after the moves that read it, but for one slot of each circle.

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
            free.append(source)  # next, so that circles are closed one by one
    return order


def rounds(moves: Iterable[Move], crosses: Callable[[Move], bool], most: int) -> Iterator[list[Move]]:
    """Cuts the list where more than `most` moves of a round would cross from shard to shard."""
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
