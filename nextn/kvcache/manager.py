"""The KV manager: only it changes a request's `pages`, `cached`, `committed` and `lock`.

    req.pages:  | p0 ....... | ................... | ........... |
    slots:      [0, cached)    pages of the prefix cache, locked by this request
                [cached, committed)   pages of the request, with final entries
                [committed, len(pages) * page_size)   pages of the request, reserved: a step may write them
                [draft_from, draft_to)   slots with entries of the draft layer too; with several draft layers,
                                         the later ones do not have the last of them yet

The draft layer does not run while drafts are off, so a page can have entries of the target only.
`draft_from` is the beginning of the page after the last such page: the draft layer attends to what follows.

A request's life: `admit`, then in each step `reserve`, `commit` and `trim`, `share` when other requests could
use its pages, and at last `release`. Every page has one owner at any time: the free list, the prefix cache,
or one request. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from nextn.draft import draft_window
from nextn.kvcache.allocator import PageAllocator
from nextn.kvcache.base import PrefixCache
from nextn.request import Request


class KVManager:
    def __init__(self, num_pages: int, page_size: int, prefix_cache: PrefixCache) -> None:
        """num_pages includes the null page, as in the pool. prefix_cache: empty, of this page size."""
        self.page_size = page_size
        self._allocator = PageAllocator(num_pages)
        self._cache = prefix_cache
        self._lag = prefix_cache.ahead - 1  # positions by which the last NextN layer is behind the first
        self._window = draft_window(page_size)
        self._drafted = bytearray(num_pages)  # 1: the page has entries of the draft layer too

    # --- counts -------------------------------------------------------------------------------

    def pages_for(self, length: int) -> int:
        """Pages that cover `length` slots."""
        return -(-length // self.page_size)

    def shareable(self, length: int) -> int:
        """Number of slots that two requests with the same prompt of `length` tokens can share."""
        return self._cache.knows(length) * self.page_size

    @property
    def available(self) -> int:
        """Number of pages that `reserve` could get: free, or cached and not locked."""
        return self._allocator.num_free + self._cache.evictable

    @property
    def total_tokens(self) -> int:
        """Slots of all pages but the null page."""
        return self._allocator.capacity * self.page_size

    @property
    def used_tokens(self) -> int:
        """Slots of all pages that requests hold, including the unused slots of a page. Cached pages that no
        request holds are not included: they can be evicted at any time."""
        return (self._allocator.capacity - self.available) * self.page_size

    # --- a request's life ---------------------------------------------------------------------

    def admit(self, req: Request, max_cached: int | None = None) -> None:
        """Gives the request the cached prefix of its tokens, at most `max_cached` slots, and locks it. At
        least one token is left to compute: committed <= len(tokens) - 1."""
        assert req.lock is None, "admitted twice"
        assert req.tokens
        known = len(req.tokens) if max_cached is None else max_cached + self._cache.ahead
        req.pages, req.lock = self._cache.match(req.tokens[:known])
        if req.hold:  # another engine gets the pages, so they need entries of the draft layer
            missing = [not self._drafted[page] for page in req.pages] + [True]
            known = missing.index(True) * self.page_size + self._cache.ahead
            req.pages, req.lock = self._cache.match(req.tokens[:known])
        self._cache.lock(req.lock)
        req.sent_pages = 0
        req.cached = req.committed = req.draft_to = len(req.pages) * self.page_size
        req.draft_from = 0
        self._see_behind(req, range(len(req.pages)))

    def reserve(self, req: Request, length: int) -> bool:
        """Allocates pages so that the request's pages cover `length` slots. Evicts from the prefix cache if
        necessary. If there are not enough pages, returns False and changes nothing."""
        need = -(-length // self.page_size) - len(req.pages)
        if need <= 0:
            return True
        assert req.lock is not None, "reserved before it was admitted"
        short = need - self._allocator.num_free
        if short > 0:
            if short > self._cache.evictable:
                return False
            self._allocator.free(self._cache.evict(short))
        pages = self._allocator.alloc(need)
        assert pages is not None, "the prefix cache evicted less than it counted as evictable"
        for page in pages:
            self._drafted[page] = 0
        req.pages += pages
        return True

    def commit(self, req: Request, n: int) -> None:
        """Marks the next n slots as final. The caller has appended their tokens and one more: the key of a
        slot is its token and the next one."""
        committed = req.committed + n
        assert n >= 0
        assert committed <= len(req.pages) * self.page_size, "committed more than was reserved"
        assert committed < len(req.tokens), "committed a slot whose successor is not known"
        req.committed = committed

    def extended(self, req: Request) -> None:
        """The draft layer has run over everything committed."""
        size, lag = self.page_size, self._lag
        first, end = (req.draft_to - lag) // size, (req.committed - lag) // size
        if first < end:
            for page in req.pages[max(first, req.draft_from // size) : end]:
                self._drafted[page] = 1
        req.draft_to = req.committed

    def received(self, req: Request, length: int) -> None:
        """The first `length` slots came from another engine, with entries of the target and the draft layer.
        The request has not computed any slots itself yet."""
        assert req.draft_to == max(req.committed, req.draft_from)
        for page in req.pages[req.committed // self.page_size : length // self.page_size]:
            self._drafted[page] = 1
        self.commit(req, length - req.committed)
        req.draft_to = max(req.draft_to, length)

    def begin_to_keep(self, req: Request) -> None:
        """From now on the drafter keeps hidden states to catch up later. Positions so far are skipped."""
        if req.deferred:
            req.draft_from = req.draft_to = self.pages_for(req.committed) * self.page_size

    def skip_drafts(self, req: Request) -> None:
        """Called before the draft layer catches up. If it is behind by more than its window, positions before
        the window are skipped."""
        if req.committed - req.draft_to > self._window:
            req.draft_from = req.draft_to = self.pages_for(req.committed - self._window) * self.page_size

    def _see_behind(self, req: Request, numbers: Sequence[int]) -> None:
        """Moves `draft_from` to the end of the last of these pages that has no draft entries, if any."""
        for i in reversed(numbers):
            if i * self.page_size < req.draft_to and not self._drafted[req.pages[i]]:
                req.draft_from = max(req.draft_from, (i + 1) * self.page_size)
                req.draft_to = max(req.draft_to, req.draft_from)
                return

    def send(self, req: Request) -> tuple[int, Sequence[int]]:
        """(index of the first, pages) that have not been sent to the executor yet. Marks them as sent."""
        first, req.sent_pages = req.sent_pages, len(req.pages)
        return first, req.pages[first:] if first < req.sent_pages else ()

    def trim(self, req: Request, length: int) -> None:
        """Frees the pages after the first `length` slots, but keeps committed slots."""
        keep = -(-(length if length > req.committed else req.committed) // self.page_size)
        if keep < len(req.pages):
            self._allocator.free(req.pages[keep:])
            del req.pages[keep:]
            req.sent_pages = min(req.sent_pages, keep)

    def share(self, req: Request) -> None:
        """Puts the full committed pages of the request into the prefix cache, so that others can use them.
        If the cache already has a page for the same tokens, the request uses that page and its own is freed:
        both have the same bits."""
        assert req.lock is not None, "shared before it was admitted"
        full, old = (req.committed - self._lag) // self.page_size, req.cached // self.page_size
        if full <= old:
            return
        own = req.pages[:full]
        held, lock = self._cache.insert(req.tokens, own)
        assert len(held) in (0, full)
        assert held[:old] == own[: min(old, len(held))]
        if not held:
            return
        self._cache.lock(lock)  # before the unlock, so that no page is without a lock in between
        self._cache.unlock(req.lock)
        req.lock = lock
        req.cached = full * self.page_size
        changed = [i for i in range(full) if own[i] != held[i]]
        self._allocator.free([own[i] for i in changed])
        req.pages[:full] = held
        if changed:
            req.sent_pages = min(req.sent_pages, changed[0])
            self._see_behind(req, changed)

    def release(self, req: Request, share: bool = True) -> None:
        """Releases the request's pages. share: its committed pages are put into the prefix cache first. All
        others are freed. The request keeps its tokens, so it can be admitted again."""
        if share:
            self.share(req)
        self._cache.unlock(req.lock)
        self._allocator.free(req.pages[req.cached // self.page_size :])
        req.pages, req.sent_pages = [], 0
        req.cached = req.committed = req.draft_from = req.draft_to = 0
        req.lock = None

    def flush(self) -> None:
        """Removes all pages from the prefix cache that no request holds."""
        self._allocator.free(self._cache.reset())

    # --- checks -------------------------------------------------------------------------------

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Recomputes everything and asserts: each page has exactly one owner, the locks are those of
        `requests`, and the cached part of each request is the prefix cache's path of the same tokens.
        `requests`: all that are admitted and not released."""
        own: list[int] = []
        for req in requests:
            assert req.lock is not None, f"{req.rid} is not admitted"
            assert 0 <= req.cached <= req.committed < len(req.tokens)
            assert 0 <= req.draft_from <= req.draft_to <= max(req.committed, req.draft_from)
            assert req.draft_from <= self.pages_for(req.committed) * self.page_size
            assert req.draft_from % self.page_size == 0
            final = max(0, req.draft_to - self._lag)
            seen = req.pages[req.draft_from // self.page_size : final // self.page_size]
            assert all(self._drafted[page] for page in seen), f"{req.rid} sees pages without draft entries"
            assert req.committed <= len(req.pages) * self.page_size
            assert req.cached % self.page_size == 0
            assert req.sent_pages <= len(req.pages)
            cached = req.cached // self.page_size
            tokens, pages = self._cache.path(req.lock)
            assert pages == req.pages[:cached], f"{req.rid} holds other pages than it has locked"
            assert tokens == req.tokens[: req.cached + self._cache.ahead] or not cached
            own += req.pages[cached:]
        self._cache.check_integrity([req.lock for req in requests])
        self._allocator.check_integrity([*own, *self._cache.pages()])
