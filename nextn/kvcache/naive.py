"""A prefix cache that keeps nothing: for --disable-radix-cache, and as a reference in tests of the other."""

from __future__ import annotations

from collections.abc import Iterable

from nextn.kvcache.base import Match, PrefixCache

_NOTHING = object()  # the only handle; it covers no page


class NaiveCache(PrefixCache):
    def __init__(self) -> None:
        self.evictable, self.ahead = 0, 1  # `ahead` has no meaning here
        self._locks = 0

    def knows(self, length: int) -> int:
        return 0

    def match(self, tokens: list[int]) -> Match:
        return Match([], _NOTHING)

    def lock(self, handle: object) -> None:
        assert handle is _NOTHING
        self._locks += 1

    def unlock(self, handle: object) -> None:
        assert handle is _NOTHING
        assert self._locks > 0
        self._locks -= 1

    def insert(self, tokens: list[int], pages: list[int]) -> Match:
        return Match([], _NOTHING)

    def evict(self, count: int) -> list[int]:
        return []

    def pages(self) -> list[int]:
        return []

    def path(self, handle: object) -> tuple[list[int], list[int]]:
        return [], []

    def check_integrity(self, locked: Iterable[object]) -> None:
        handles = list(locked)
        assert all(handle is _NOTHING for handle in handles)
        assert len(handles) == self._locks, "locks held and locks counted differ"
        assert self.evictable == 0
