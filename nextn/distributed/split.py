"""How n columns are divided among the ranks of a group."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nextn.distributed.group import Alone, Group, bounds

UNITS = (64, 16, 1)  # columns that stay together, if every rank then still gets some


@dataclass(frozen=True)
class Split:
    """Rank r of the group computes columns bounds[r]:bounds[r + 1], and begin:end is this rank's part. If
    every rank computes all columns, the group contains only this rank."""

    group: Group
    bounds: tuple[int, ...]

    @classmethod
    def even(cls, group: Group, n: int) -> Split:
        unit = next(u for u in UNITS if u == 1 or -(-n // u) >= group.size)
        return cls(group, bounds(n, group.size, unit))

    @classmethod
    def not_split(cls, n: int) -> Split:
        return cls(Alone(), (0, n))

    @property
    def n(self) -> int:
        """Number of columns of all ranks."""
        return self.bounds[-1]

    @property
    def begin(self) -> int:
        return self.bounds[self.group.rank]

    @property
    def end(self) -> int:
        return self.bounds[self.group.rank + 1]

    @property
    def own(self) -> range:
        """This rank's columns."""
        return range(self.begin, self.end)

    @property
    def parts(self) -> list[range]:
        """Each rank's columns."""
        return [range(*self.bounds[r : r + 2]) for r in range(self.group.size)]

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all columns."""
        return self.group.size == 1

    def times(self, width: int) -> Split:
        """The same split with `width` columns in place of each column."""
        return Split(self.group, tuple(b * width for b in self.bounds))

    def gather(self, whole: Tensor) -> None:
        """whole [rows, n], contiguous, with columns begin:end written: fills in the others."""
        self.group.gather(whole, self.bounds)

    def whole(self, part: Tensor) -> Tensor:
        """part [rows, end - begin] -> [rows, n]."""
        return self.wholes(part)[0]

    def wholes(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """The same for several parts with the same number of rows, in one gather."""
        if self.is_whole:
            return parts
        rows = len(parts[0])
        found = parts[0].new_empty(len(parts), rows, self.n)
        for at, part in zip(found, parts, strict=True):
            at[:, self.begin : self.end] = part
        self.gather(found.flatten(0, 1))
        return found.unbind()
