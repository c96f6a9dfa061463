"""How many rows each expert computed, as plain data, which can be read without numpy."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CountTable:
    """Number of rows that chose each expert: int64 [layers, experts], or int32 [steps, layers, experts]."""

    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class ExpertRecord:
    """The record of one engine. nextn: for the NextN layers' experts; None if there are none. steps: number
    of steps recorded. left_out: number of the oldest steps, whose tables were dropped."""

    target: CountTable
    nextn: CountTable | None
    steps: int
    left_out: int = 0


@dataclass(frozen=True)
class ShardRows:
    """Rows that one engine's requests sent to each shard of experts, in its last window of steps: float64
    [layers, shards]."""

    shards: int
    rows: bytes


def imbalance(engines: Sequence[ShardRows]) -> float:
    """The highest load of a shard divided by the mean load, over engines that share the shards. Both are
    summed over the layers. The minimum is 1, also without rows.

    >>> two = [ShardRows(2, array("d", rows).tobytes()) for rows in ([3, 1, 2, 2], [1, 1, 2, 0])]
    >>> imbalance(two)  # the layers have 4 and 2, 4 and 2: means are 3
    1.3333333333333333
    """
    tables = [array("d", each.rows) for each in engines]
    rows = [sum(of_shard) for of_shard in zip(*tables, strict=True)]
    shards = engines[0].shards
    most = sum(max(rows[at : at + shards]) for at in range(0, len(rows), shards))
    return most * shards / sum(rows) if any(rows) else 1.0
