"""What the native attention reads in a cache entry: `Heads`, for latent attention and for grouped queries."""

from __future__ import annotations

from nextn.ops.cpu.interface import Heads
from nextn.ops.cpu.weights import padded

ALIGN = 32  # elements: values and keys are filled up to whole runs of them


def latent_heads(heads: int, rank: int, width: int) -> Heads:
    """MLA: the entry is the key of all heads, and its first `rank` columns are the value. rank and width are
    multiples of ALIGN."""
    return Heads(1, heads, 0, 1, width, rank, 0, width, rank)


def grouped_heads(kv_heads: int, heads: int, value: int, key: int) -> Heads:
    """GQA: a value and a key for each of kv_heads, each of which `heads` query heads share."""
    value_room, key_room = padded(value, ALIGN), padded(key, ALIGN)
    return Heads(kv_heads, heads, 0, 1, value_room + key_room, value_room, value_room, key_room, value)
