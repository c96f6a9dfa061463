"""Numbers the processes that connect if groups of ranks are on several machines: first the engines of all
groups, which are on node 0, and then the ranks of all groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Members:
    """groups: of ranks. each: ranks of one. The engine of group g is member g.

    >>> members = Members(groups=2, each=2)
    >>> members.size, members.of_group(1), members.name(1), members.name(4)
    (6, range(4, 6), 'the engine of group 1', 'rank 2')
    """

    groups: int
    each: int

    @property
    def size(self) -> int:
        return self.groups + self.groups * self.each

    @property
    def ranks(self) -> range:
        return range(self.groups, self.size)

    def rank(self, rank: int) -> int:
        """The member number of this rank. rank: counted over all groups."""
        return self.groups + rank

    def of_group(self, group: int) -> range:
        """The members that are ranks of this group."""
        first = self.rank(group * self.each)
        return range(first, first + self.each)

    def name(self, member: int) -> str:
        return f"rank {member - self.groups}" if member in self.ranks else f"the engine of group {member}"
