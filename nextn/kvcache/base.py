"""The contract of a prefix cache: pages of committed tokens, kept so that later requests can use them.

A cached page is identified by the tokens before it, its own, *and the one after it*: the NextN layer's
entry at position i mixes in token i + 1, so slot i belongs to the pair (t_i, t_i+1). With pages of P
slots, page p of a sequence holds the slots p*P .. p*P+P-1 and is known by tokens[: p*P+P+1].

    P = 2   tokens   a b c d e      -> page 0 by (a b c), page 1 by (a b c d e)
            tokens   a b c d        -> page 0 by (a b c); slot d waits for its successor

So n tokens name (n - 1) // P pages, and a match always leaves at least one token to compute.

Several NextN layers look further: the entry of layer k, counted from 0, mixes in token i + k + 1. A page is
then known by as many tokens after it as there are layers, `ahead`, and n tokens name (n - ahead) // P pages.

A page belongs either to the cache or to its caller, never to both. The cache frees nothing: what it
gives up it returns, and the caller hands it to the allocator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """A prefix that the cache holds: its pages, in order, and the handle by which to lock it."""

    pages: list[int]
    handle: object


class PrefixCache(ABC):
    """Not thread-safe. Times are counted in calls of `match` and `insert`, not in seconds."""

    evictable: int  # pages that `evict` could return now: those that no lock covers
    ahead: int  # tokens after a page that it is known by, at least 1

    @abstractmethod
    def knows(self, length: int) -> int:
        """The largest number of pages that can be found for a text of n tokens."""

    @abstractmethod
    def match(self, tokens: list[int]) -> Match:
        """The longest cached prefix of `tokens`, at most `knows(len(tokens))` pages.

        Makes that prefix the most recently used. Takes no lock: the answer holds until the next call
        of `evict`, so lock the handle first. The list of pages is the caller's own.
        """

    @abstractmethod
    def lock(self, handle: object) -> None:
        """Keeps the handle's whole prefix from eviction. Locks are counted."""

    @abstractmethod
    def unlock(self, handle: object) -> None:
        """Undoes one `lock` of this handle; asserts that there was one. The pages stay in the cache,
        and their place in the order of use does not change."""

    @abstractmethod
    def insert(self, tokens: list[int], pages: list[int]) -> Match:
        """Offers the pages of a prefix of `tokens`; needs len(pages) * page_size + ahead of them.

        Answers with the prefix that the cache now holds, either all of `pages` long or, where nothing
        is kept, empty. answer.pages[i] == pages[i]: that page is now the cache's (or was already).
        answer.pages[i] != pages[i]: the cache had that page under another id; pages[i] stays the
        caller's, who should go over to the cache's page and free his own.

        Makes the prefix the most recently used. Copies what it keeps, takes no lock (see `match`), and
        every lock held before still covers exactly what it did.
        """

    @abstractmethod
    def evict(self, count: int) -> list[int]:
        """Gives up min(count, evictable) pages and returns them; the caller owns them then.

        The least recently used prefix goes first and from its end, so what stays is always a prefix.
        Handles that are not locked are invalid afterwards.
        """

    def reset(self) -> list[int]:
        """Gives up every page that no lock covers and returns them, like `evict`."""
        return self.evict(self.evictable)

    @abstractmethod
    def pages(self) -> list[int]:
        """Every page that the cache owns, in no order. Walks everything: for checks, not for a step."""

    @abstractmethod
    def path(self, handle: object) -> tuple[list[int], list[int]]:
        """What a locked handle covers: (tokens, pages), the len(pages) * page_size + ahead tokens by which
        its pages are known; two empty lists if it covers nothing. Slow, for checks."""

    @abstractmethod
    def check_integrity(self, locked: Iterable[object]) -> None:
        """Recomputes everything from scratch and asserts that it is as kept. `locked`: the handle of
        every lock held, once per lock. Changes nothing."""
