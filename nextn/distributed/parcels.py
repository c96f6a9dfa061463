"""Transfers bytes between ranks that do not share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nextn.distributed.expert_share import Bytes, fill

# (an array for each rank, number of bytes from each rank) -> the bytes from each rank.
Swap = Callable[[Sequence[Bytes], Sequence[int]], Sequence[Bytes]]


class Parcel(NamedTuple):
    """Bytes that one rank sends to another. `place` is in an area, at the same offset on both."""

    source: int
    to: int
    place: Bytes


def hand_over(parcels: Sequence[Parcel], rank: int, size: int, swap: Swap) -> None:
    """Transfers all parcels of `size` ranks. All ranks must call it with the same parcels. Writes those for
    this rank."""
    none, ranks = np.zeros(0, np.uint8), range(size)
    away = [p for p in parcels if p.source != p.to]
    out = [[p.place for p in away if (p.source, p.to) == (rank, other)] for other in ranks]
    due = [[p.place for p in away if (p.source, p.to) == (other, rank)] for other in ranks]
    sent = [np.concatenate(some) if some else none for some in out]
    for some, data in zip(due, swap(sent, [sum(map(len, some)) for some in due]), strict=True):
        fill(some, data)
