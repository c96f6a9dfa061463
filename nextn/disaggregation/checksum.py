"""A checksum of many bytes that costs little beside copying them.

zlib.crc32 alone reads 1 to 5 GiB/s, as fast as a socket. Sums of 512 lanes of 64 bits read as fast as memory
does, and every changed byte changes its lane's sum, so that only the 4 KiB of sums are left for crc32.
"""

from __future__ import annotations

import array
import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LANES = 512
ROW = 8 * LANES


def checksum(data: NDArray[np.uint8]) -> int:
    """Of a flat array, in 32 bits."""
    whole = len(data) // ROW * ROW
    rows = data[:whole].view(np.uint64).reshape(-1, LANES)
    sums = np.add.reduce(rows, axis=0)
    return zlib.crc32(data[whole:].data, zlib.crc32(sums.data))


def prompt_hash(tokens: Sequence[int]) -> bytes:
    """By which both halves see that they mean the same prompt."""
    return hashlib.blake2b(array.array("q", tokens), digest_size=16).digest()
