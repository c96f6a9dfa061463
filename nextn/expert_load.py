"""How many rows experts had: what an engine says of it, as plain data, which can be read without numpy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CountTable:
    """Rows that chose each expert: int64 of [layers, experts], or int32 of [steps, layers, experts]."""

    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class ExpertRecord:
    """Of one engine. nextn: of the NextN layers' experts, None if there are none. steps: while it recorded.
    left_out: of these the oldest, for which there are no tables any more."""

    target: CountTable
    nextn: CountTable | None
    steps: int
    left_out: int = 0


@dataclass(frozen=True)
class ShardRows:
    """Rows that one engine's requests gave each shard of experts, in its last window of steps: float64 of
    [layers, shards]."""

    shards: int
    rows: bytes


def imbalance(engines: Sequence[ShardRows]) -> float:
    """Of engines that share the shards: the highest load of a shard over the mean, each layer's added up. At
    best, and without rows, it is 1.

    >>> two = [ShardRows(2, array("d", rows).tobytes()) for rows in ([3, 1, 2, 2], [1, 1, 2, 0])]
    >>> imbalance(two)  # the layers have 4 and 2, 4 and 2: means are 3
    1.3333333333333333
    """
    tables = [array("d", each.rows) for each in engines]
    rows = [sum(of_shard) for of_shard in zip(*tables, strict=True)]
    shards = engines[0].shards
    most = sum(max(rows[at : at + shards]) for at in range(0, len(rows), shards))
    return most * shards / sum(rows) if any(rows) else 1.0
