"""Moves the cache entries of accepted tree nodes to the slots of their positions."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.kvcache.pool import KVPool
from nextn.speculative.state import RequestState


def compact(
    pool: KVPool, layers: int, states: Sequence[RequestState], accepted: Sequence[Sequence[int]]
) -> None:
    """accepted: the accepted nodes of each request's draft. layers: number of layers of the target. Entries
    of chains are in the right slots already."""
    source: list[int] = []
    target: list[int] = []
    for r, path in zip(states, accepted, strict=True):
        for depth, node in enumerate(path, start=1):
            if node + 1 != depth:
                source.append(pool.slot(r.pages, r.start + node + 1))
                target.append(pool.slot(r.pages, r.start + depth))
    if source:
        pool.move(source, target, layers)
