"""Bytes that ranks hand over to each other, where each has memory of its own for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nextn.distributed.expert_share import Bytes, fill

# An array for each rank, and how many bytes come from each -> what comes from each.
Swap = Callable[[Sequence[Bytes], Sequence[int]], Sequence[Bytes]]


class Parcel(NamedTuple):
    """Bytes that a rank hands over to another one; `place` is in an area, at the same place on both."""

    source: int
    to: int
    place: Bytes


def hand_over(parcels: Sequence[Parcel], rank: int, size: int, swap: Swap) -> None:
    """All parcels of `size` ranks, the same on each. Writes those that come to this one."""
    none, ranks = np.zeros(0, np.uint8), range(size)
    away = [p for p in parcels if p.source != p.to]
    out = [[p.place for p in away if (p.source, p.to) == (rank, other)] for other in ranks]
    due = [[p.place for p in away if (p.source, p.to) == (other, rank)] for other in ranks]
    sent = [np.concatenate(some) if some else none for some in out]
    for some, data in zip(due, swap(sent, [sum(map(len, some)) for some in due]), strict=True):
        fill(some, data)
