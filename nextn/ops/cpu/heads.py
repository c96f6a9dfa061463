"""Describes cache entries for the native attention (`Heads`), for MLA and for grouped-query attention."""

from __future__ import annotations

from nextn.ops.cpu.interface import Heads
from nextn.ops.cpu.weights import padded

ALIGN = 32  # values and keys are padded to a multiple of this many elements


def latent_heads(heads: int, rank: int, width: int) -> Heads:
    """MLA: the entry is the key of all heads, and its first `rank` columns are the value. rank and width are
    multiples of ALIGN."""
    return Heads(1, heads, 0, 1, width, rank, 0, width, rank)


def grouped_heads(kv_heads: int, heads: int, value: int, key: int) -> Heads:
    """GQA: a value and a key for each of kv_heads. `heads` query heads share each pair."""
    value_room, key_room = padded(value, ALIGN), padded(key, ALIGN)
    return Heads(kv_heads, heads, 0, 1, value_room + key_room, value_room, value_room, key_room, value)
