"""A world: the ranks of several engines, which share the routed experts. Each engine has its own requests and
attention.

W ranks are divided in two ways, both into parts of consecutive ranks:

    groups  D: a group is one engine. Its W / D ranks compute attention together (tensor parallel).
    shards  E: a shard holds some of the experts. Its W / E ranks, the slices, hold some columns of each.

With 4 ranks, 2 groups and 2 shards of 2 slices, rank 3 is in group 1, and is slice 1 of shard 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from nextn.distributed.group import Group

if TYPE_CHECKING:  # the HTTP process does without torch
    from torch import Tensor


class World(Protocol):
    """All ranks call the same methods in the same order. Each may raise PeerGone."""

    @property
    def size(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def shard(self) -> int: ...

    @property
    def shards(self) -> int: ...

    @property
    def slices(self) -> int: ...

    @property
    def peers(self) -> Group:
        """The slices of this rank's shard."""

    def exchange(self, parts: Sequence[Tensor], due: Sequence[int]) -> list[Tensor]:
        """All-to-all: sends parts[r] to rank r, and returns what each rank sent to this one. All have the
        same dtype and trailing shape, with any number of rows, also 0. due: number of rows from each rank."""


class Places:
    """The place of a rank in a world. Raises ValueError for sizes that do not divide."""

    def __init__(self, rank: int, size: int, groups: int, shards: int) -> None:
        assert 0 <= rank < size
        for what, count in (("attention groups", groups), ("expert shards", shards)):
            if count < 1 or size % count:
                raise ValueError(f"{size} ranks cannot be divided evenly into {count} {what}")
        self.rank, self.size, self.groups, self.shards = rank, size, groups, shards
        self.slices = size // shards
        self.group, self.shard = rank // (size // groups), rank // self.slices

    def by_group(self, said: Sequence[int]) -> list[int]:
        """The value of each group, from the values of all ranks."""
        each = self.size // self.groups
        found = [list(said[g * each : (g + 1) * each]) for g in range(self.groups)]
        assert all(len(set(ranks)) == 1 for ranks in found), f"ranks of a group differ in their rows: {found}"
        return [ranks[0] for ranks in found]


def parts_of(size: int, count: int) -> list[range]:
    """Divides ranks into `count` parts of consecutive ranks.

    >>> parts_of(4, 2)
    [range(0, 2), range(2, 4)]
    """
    each = size // count
    return [range(i * each, (i + 1) * each) for i in range(count)]
