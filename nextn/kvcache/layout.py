"""What one token's entry in one layer of the KV pool is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class CacheLayout(Protocol):
    @property
    def width(self) -> int:
        """Elements of an entry."""

    def view(self, entries: Tensor) -> Tensor:
        """One layer of the pool, [slots, width], as attention reads and writes it; a view, no copy."""


@dataclass(frozen=True)
class LatentLayout:
    """MLA: the normed latent (rank) and the rotated key (rope), which all heads share. An entry is filled up
    to a multiple of `align` elements."""

    rank: int
    rope: int
    align: int = 1

    @property
    def width(self) -> int:
        return -(-(self.rank + self.rope) // self.align) * self.align

    def view(self, entries: Tensor) -> Tensor:
        """[slots, width]."""
        return entries


@dataclass(frozen=True)
class KeyValueLayout:
    """GQA: for each key-value head its value, then its key, each `head_dim` wide. So one head's part of an
    entry is as MLA's entry: a key whose first columns would be the value, one behind the other. Values and
    keys are filled up to a multiple of `align` elements."""

    heads: int
    head_dim: int
    align: int = 1

    @property
    def width(self) -> int:
        return self.heads * 2 * (-(-self.head_dim // self.align) * self.align)

    def view(self, entries: Tensor) -> Tensor:
        """[slots, heads, value | key]."""
        return entries.view(len(entries), self.heads, -1)
