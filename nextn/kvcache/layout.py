"""What one token's entry in one layer of the KV pool is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class CacheLayout(Protocol):
    @property
    def width(self) -> int:
        """Elements of an entry."""

    def view(self, entries: Tensor) -> Any:
        """One layer of the pool, [slots, width], as attention reads and writes it; views, no copies."""


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
    """GQA: a key and a value for each key-value head, the keys of all heads first."""

    heads: int
    key: int
    value: int

    @property
    def width(self) -> int:
        return self.heads * (self.key + self.value)

    def view(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [slots, heads, key] and values [slots, heads, value]."""
        keys, values = entries.split((self.heads * self.key, self.heads * self.value), dim=-1)
        return keys.unflatten(-1, (self.heads, self.key)), values.unflatten(-1, (self.heads, self.value))
