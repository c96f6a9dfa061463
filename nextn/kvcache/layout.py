"""The layout of one token's entry in one layer of the KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class CacheLayout(Protocol):
    @property
    def width(self) -> int:
        """Number of elements of an entry."""

    def view(self, entries: Tensor) -> Tensor:
        """A view of one layer of the pool, [slots, width], in the shape that attention reads and writes."""


@dataclass(frozen=True)
class LatentLayout:
    """MLA: the latent after its norm (rank) and the rotated key (rope), shared by all heads. An entry is
    padded to a multiple of `align` elements."""

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
    """GQA: for each key-value head its value, then its key, each `head_dim` wide. Values and keys are padded
    to a multiple of `align` elements. So the value is at the beginning, as in an MLA entry."""

    heads: int
    head_dim: int
    align: int = 1

    @property
    def width(self) -> int:
        return self.heads * 2 * (-(-self.head_dim // self.align) * self.align)

    def view(self, entries: Tensor) -> Tensor:
        """[slots, heads, value | key]."""
        return entries.view(len(entries), self.heads, -1)
