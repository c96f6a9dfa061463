"""Remembers the prompts that a replica was sent recently, as hashes of their beginnings. They approximate the
contents of its prefix cache, for the choice of a replica."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 32  # tokens
MOST_BLOCKS = 2**16  # per replica; about 10 MB


def hashed(tokens: Sequence[int]) -> list[int]:
    """A hash for each complete block of a prompt. It covers all tokens up to the block's end.

    >>> a, b = hashed(range(100)), hashed([*range(64), *range(36)])
    >>> len(a), a[0] == b[0], a[1] == b[1], a[2] == b[2]
    (3, True, True, False)
    """
    hashes: list[int] = []
    last = 0
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        last = hash((last, *tokens[begin : begin + BLOCK]))
        hashes.append(last)
    return hashes


class PrefixIndex:
    """The index of one engine process. It begins empty, like the engine's cache. It drops the oldest prompts
    first, and the end of a prompt before its beginning."""

    def __init__(self, slots: int) -> None:
        """slots: size of the engine's KV pool, the maximum that its cache can hold."""
        self.most = min(slots // BLOCK, MOST_BLOCKS)
        self._blocks: OrderedDict[int, None] = OrderedDict()  # the latest is last

    def __len__(self) -> int:
        return len(self._blocks)

    def matched(self, blocks: Sequence[int]) -> int:
        """Number of tokens at the beginning of a prompt with these hashes that were sent before."""
        count = next((i for i, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        return count * BLOCK

    def add(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.most:
            self._blocks.popitem(last=False)
