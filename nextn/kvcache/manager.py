"""The KV manager: the one owner of a request's `pages`, `cached`, `committed` and `lock`.

    req.pages:  | p0 ....... | ................... | ........... |
    slots:      [0, cached)    the prefix cache's pages, locked by this request
                [cached, committed)   its own, true for good
                [committed, len(pages) * page_size)   its own, reserved: a step may write them
                [draft_from, draft_to)   true for the draft layer, too; the last of them not yet for each of
                                         several layers

The draft layer does not run over positions while nobody drafts, so a page can be true for the target alone.
`draft_from` lies behind the last such page, at the beginning of one: the draft layer sees what follows it.

A request goes `admit`, then `reserve` / `commit` / `trim` once a step and `share` whenever others may
want what it has, then `release`. Every page has one owner at any time: the free list, the prefix cache,
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
        """num_pages counts the null page, as the pool does. prefix_cache: empty, of this page size."""
        self.page_size = page_size
        self._allocator = PageAllocator(num_pages)
        self._cache = prefix_cache
        self._lag = prefix_cache.ahead - 1  # positions by which the last of several NextN layers is behind
        self._window = draft_window(page_size)
        self._drafted = bytearray(num_pages)  # 1: the page is true for the draft layer, too

    # --- counts -------------------------------------------------------------------------------

    def pages_for(self, length: int) -> int:
        """Pages that cover `length` slots."""
        return -(-length // self.page_size)

    def shareable(self, length: int) -> int:
        """Slots of a prompt of so many tokens that a request can take over from another with that prompt."""
        return self._cache.knows(length) * self.page_size

    @property
    def available(self) -> int:
        """Pages that `reserve` could get: free, or cached and not locked."""
        return self._allocator.num_free + self._cache.evictable

    @property
    def total_tokens(self) -> int:
        """Slots of all pages but the null page."""
        return self._allocator.capacity * self.page_size

    @property
    def used_tokens(self) -> int:
        """Slots of the pages that live requests hold; partly filled pages count whole. Cached pages that no
        request holds do not count: they can be evicted at any time."""
        return (self._allocator.capacity - self.available) * self.page_size

    # --- a request's life ---------------------------------------------------------------------

    def admit(self, req: Request, max_cached: int | None = None) -> None:
        """Gives the request the cached prefix of its tokens, at most `max_cached` slots, and locks it. At
        least one token is left to compute: committed <= len(tokens) - 1."""
        assert req.lock is None, "admitted twice"
        assert req.tokens
        known = len(req.tokens) if max_cached is None else max_cached + self._cache.ahead
        req.pages, req.lock = self._cache.match(req.tokens[:known])
        if req.hold:  # another engine gets the pages, the draft layer's too
            missing = [not self._drafted[page] for page in req.pages] + [True]
            known = missing.index(True) * self.page_size + self._cache.ahead
            req.pages, req.lock = self._cache.match(req.tokens[:known])
        self._cache.lock(req.lock)
        req.sent_pages = 0
        req.cached = req.committed = req.draft_to = len(req.pages) * self.page_size
        req.draft_from = 0
        self._see_behind(req, range(len(req.pages)))

    def reserve(self, req: Request, length: int) -> bool:
        """Makes the request's pages cover `length` slots, evicting from the prefix cache if need be.
        False, and nothing changed, if there are not enough."""
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
        """Marks the next n slots as true. The caller has appended their tokens and one more: a slot is
        identified by its token and the one after it."""
        committed = req.committed + n
        assert n >= 0
        assert committed <= len(req.pages) * self.page_size, "committed more than was reserved"
        assert committed < len(req.tokens), "committed a slot whose successor is not known"
        req.committed = committed

    def extended(self, req: Request) -> None:
        """Marks everything committed as seen by the draft layer."""
        size, lag = self.page_size, self._lag
        first, end = (req.draft_to - lag) // size, (req.committed - lag) // size
        if first < end:
            for page in req.pages[max(first, req.draft_from // size) : end]:
                self._drafted[page] = 1
        req.draft_to = req.committed

    def received(self, req: Request, length: int) -> None:
        """Marks the first `length` slots as true for the target and for the draft layer: they came from
        another engine. None of the request's own have been computed yet."""
        assert req.draft_to == max(req.committed, req.draft_from)
        for page in req.pages[req.committed // self.page_size : length // self.page_size]:
            self._drafted[page] = 1
        self.commit(req, length - req.committed)
        req.draft_to = max(req.draft_to, length)

    def begin_to_keep(self, req: Request) -> None:
        """From now on the drafter keeps what it needs to catch up. It will never see what it has missed."""
        if req.deferred:
            req.draft_from = req.draft_to = self.pages_for(req.committed) * self.page_size

    def skip_drafts(self, req: Request) -> None:
        """Called before the draft layer catches up. If it is behind by more than its window, the earlier
        positions are skipped: it will never see them."""
        if req.committed - req.draft_to > self._window:
            req.draft_from = req.draft_to = self.pages_for(req.committed - self._window) * self.page_size

    def _see_behind(self, req: Request, numbers: Sequence[int]) -> None:
        """Moves the draft layer's view behind the last of these pages without draft entries."""
        for i in reversed(numbers):
            if i * self.page_size < req.draft_to and not self._drafted[req.pages[i]]:
                req.draft_from = max(req.draft_from, (i + 1) * self.page_size)
                req.draft_to = max(req.draft_to, req.draft_from)
                return

    def send(self, req: Request) -> tuple[int, Sequence[int]]:
        """The pages that the executor does not know yet, after the number of the first of them. It knows them
        from now on."""
        first, req.sent_pages = req.sent_pages, len(req.pages)
        return first, req.pages[first:] if first < req.sent_pages else ()

    def trim(self, req: Request, length: int) -> None:
        """Releases the pages beyond the first `length` slots; committed slots stay."""
        keep = -(-(length if length > req.committed else req.committed) // self.page_size)
        if keep < len(req.pages):
            self._allocator.free(req.pages[keep:])
            del req.pages[keep:]
            req.sent_pages = min(req.sent_pages, keep)

    def share(self, req: Request) -> None:
        """Puts the full committed pages of the request into the prefix cache, so that others can use them.
        Where the cache already has the same page, the request uses that one and its own is freed: same
        tokens, same bits."""
        assert req.lock is not None, "shared before it was admitted"
        # The last NextN layer is `ahead` - 1 positions behind the first: it mixes in a later token.
        true = req.committed - (self._cache.ahead - 1)
        full, old = true // self.page_size, req.cached // self.page_size
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
        """Ends the request's hold on its pages, whatever the reason. Its committed pages are shared, unless
        they are in doubt; the others are freed. Its tokens stay, so it can be admitted again."""
        if share:
            self.share(req)
        self._cache.unlock(req.lock)
        self._allocator.free(req.pages[req.cached // self.page_size :])
        req.pages, req.sent_pages = [], 0
        req.cached = req.committed = req.draft_from = req.draft_to = 0
        req.lock = None

    def flush(self) -> None:
        """Drops everything from the prefix cache that no request holds."""
        self._allocator.free(self._cache.reset())

    # --- checks -------------------------------------------------------------------------------

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Asserts, from scratch, that each page has exactly one owner and that the locks are those of
        `requests`. Asserts that the cached part of each request is the prefix cache's own path of the same
        tokens. `requests`: all that are admitted and not released."""
        own: list[int] = []
        for req in requests:
            assert req.lock is not None, f"{req.rid} is not admitted"
            assert 0 <= req.cached <= req.committed < len(req.tokens)
            assert 0 <= req.draft_from <= req.draft_to <= max(req.committed, req.draft_from)
            assert req.draft_from <= self.pages_for(req.committed) * self.page_size
            assert req.draft_from % self.page_size == 0
            lag = self._cache.ahead - 1
            seen = req.pages[req.draft_from // self.page_size : max(0, req.draft_to - lag) // self.page_size]
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
