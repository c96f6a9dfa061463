"""A checksum of many bytes that costs little beside copying them.

zlib.crc32 alone reads 1 to 5 GiB/s, as fast as a socket. Sums of 32 lanes of 64 bits read as fast as memory
does, and every changed byte changes its lane's sum, so that only the 256 bytes of sums are left for crc32.
`page_copies.py` sums up while it copies.
"""

from __future__ import annotations

import array
import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LANES = 32
ROW = 8 * LANES
WIDE = 512  # lanes that numpy adds at once: a short row costs as much as a long one


def checksum(data: NDArray[np.uint8]) -> int:
    """Of a flat array, in 32 bits."""
    whole = len(data) // ROW * ROW
    rows = data[:whole].view(np.uint64)
    wide = len(rows) // WIDE * WIDE
    sums = np.add.reduce(rows[:wide].reshape(-1, WIDE), axis=0).reshape(-1, LANES)
    lanes = np.add.reduce(sums, axis=0) + np.add.reduce(rows[wide:].reshape(-1, LANES), axis=0)
    return of_sums(lanes, data[whole:])


def of_sums(lanes: NDArray[np.uint64], rest: NDArray[np.uint8] | None = None) -> int:
    """lanes: the sums of all whole rows. rest: what is no whole row, or nothing."""
    found = zlib.crc32(lanes.data)
    return found if rest is None else zlib.crc32(rest.data, found)


def prompt_hash(tokens: Sequence[int]) -> bytes:
    """By which both halves see that they mean the same prompt."""
    return hashlib.blake2b(array.array("q", tokens), digest_size=16).digest()
