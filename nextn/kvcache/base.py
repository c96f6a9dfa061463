"""The contract of a prefix cache: pages of committed tokens, kept so that later requests can use them.

The key of a cached page is the tokens before it, its own tokens, *and the next token*. The NextN layer's
entry at position i depends on token i + 1 too, so slot i belongs to the pair (t_i, t_i+1). With pages of P
slots, page p of a sequence holds the slots p*P .. p*P+P-1, and its key is tokens[: p*P+P+1].

    P = 2   tokens   a b c d e      -> page 0 has key (a b c), page 1 has key (a b c d e)
            tokens   a b c d        -> page 0 has key (a b c); slot d has no key without its next token

So n tokens are the keys of (n - 1) // P pages, and after a match at least one token is left to compute.

With several NextN layers, the entry of layer k, counted from 0, depends on token i + k + 1. Then a key has as
many tokens after the page as there are layers, `ahead`, and n tokens are the keys of (n - ahead) // P pages.

A page belongs either to the cache or to its caller, never to both. The cache does not free pages: it returns
evicted pages, and the caller gives them to the allocator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """A cached prefix: its pages, in order, and a handle to lock it."""

    pages: list[int]
    handle: object


class PrefixCache(ABC):
    """Not thread-safe. Times are counted in calls of `match` and `insert`, not in seconds."""

    evictable: int  # number of pages that `evict` could return now: those without a lock
    ahead: int  # number of tokens after a page that are part of its key, at least 1

    @abstractmethod
    def knows(self, length: int) -> int:
        """The largest number of pages that a match of `length` tokens can have."""

    @abstractmethod
    def match(self, tokens: list[int]) -> Match:
        """The longest cached prefix of `tokens`, at most `knows(len(tokens))` pages.

        Makes that prefix the most recently used. Does not lock it: the result is valid until the next call
        of `evict`, so lock the handle before. The caller may change the list of pages.
        """

    @abstractmethod
    def lock(self, handle: object) -> None:
        """Protects the handle's whole prefix from eviction. Locks are counted."""

    @abstractmethod
    def unlock(self, handle: object) -> None:
        """Removes one lock of this handle; asserts that there was one. The pages stay in the cache,
        and the order of use does not change."""

    @abstractmethod
    def insert(self, tokens: list[int], pages: list[int]) -> Match:
        """Offers the pages of a prefix of `tokens`, which needs len(pages) * page_size + ahead of them.

        Returns the prefix that the cache now holds. It is as long as `pages`, or empty if the cache keeps
        nothing. If result.pages[i] == pages[i], this page now belongs to the cache (or did before). Otherwise
        the cache had another page with this key. Then pages[i] still belongs to the caller, who should
        use the cache's page and free its own.

        Makes the prefix the most recently used. Copies the lists, does not lock (see `match`), and does not
        change what existing locks cover.
        """

    @abstractmethod
    def evict(self, count: int) -> list[int]:
        """Evicts min(count, evictable) pages and returns them. They belong to the caller then.

        Evicts from the end of the least recently used prefix, so the rest is still a prefix. Handles that
        are not locked are invalid afterwards.
        """

    def reset(self) -> list[int]:
        """Evicts all pages without a lock and returns them, like `evict`."""
        return self.evict(self.evictable)

    @abstractmethod
    def pages(self) -> list[int]:
        """All pages that the cache owns, in no order. Slow, for checks."""

    @abstractmethod
    def path(self, handle: object) -> tuple[list[int], list[int]]:
        """(tokens, pages) of a locked handle: its pages, and the len(pages) * page_size + ahead tokens of the
        last page's key. Two empty lists if it covers no page. Slow, for checks."""

    @abstractmethod
    def check_integrity(self, locked: Iterable[object]) -> None:
        """Recomputes everything from scratch and asserts that nothing differs. `locked`: the handle of
        every lock, once per lock. Changes nothing."""
