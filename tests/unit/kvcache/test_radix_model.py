"""The radix cache against a brute-force model: a dict from the pairs of every prefix to its page.

Pairs (t_i, t_i+1), because that is what identifies a slot of the NextN layer's cache; of several layers,
runs of one token more for each. The model keeps a time for each page, and to evict it looks at all of them.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nextn.kvcache.radix import RadixCache

heads = st.sampled_from([[0], [0] * 7, [0, 1] * 4, [0, 0, 1] * 4])  # so that long prefixes meet
texts = st.builds(list.__add__, heads, st.lists(st.integers(0, 2), max_size=8))


def runs(tokens, ahead):
    """What identifies each slot: its token and the `ahead` after it."""
    return tuple(zip(*(tokens[i:] for i in range(ahead + 1)), strict=False))


class Model:
    def __init__(self, page_size, ahead):
        self.page_size, self.ahead = page_size, ahead
        self.time = 0
        self.page, self.used = {}, {}  # both by the pairs of all slots up to the page's end
        self.locks = []

    def prefixes(self, tokens, count):
        slots = runs(tokens, self.ahead)
        return [slots[: (i + 1) * self.page_size] for i in range(count)]

    def touch(self, prefixes):
        self.time += 1
        for prefix in prefixes:
            self.used[prefix] = self.time

    def match(self, tokens):
        held = []
        for prefix in self.prefixes(tokens, max(0, len(tokens) - self.ahead) // self.page_size):
            if prefix not in self.page:
                break
            held.append(prefix)
        self.touch(held)
        return held

    def insert(self, tokens, pages):
        prefixes = self.prefixes(tokens, len(pages))
        for prefix, page in zip(prefixes, pages, strict=True):
            self.page.setdefault(prefix, page)
        self.touch(prefixes)
        return prefixes

    def locked(self, prefix):
        return any(lock[: len(prefix)] == prefix for lock in self.locks)

    def evictable(self):
        return [prefix for prefix in self.page if not self.locked(prefix)]

    def evict(self, count):
        given = []
        while len(given) < count:
            inner = {prefix[: -self.page_size] for prefix in self.page}
            leaves = [prefix for prefix in self.evictable() if prefix not in inner]
            if not leaves:
                break
            oldest = min(leaves, key=self.used.__getitem__)
            given.append(self.page.pop(oldest))
            del self.used[oldest]
        return given


class Radix(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 1, 2, 3]), ahead=st.sampled_from([1, 1, 2, 3]))
    def start(self, page_size, ahead):
        self.cache, self.model, self.ahead = RadixCache(page_size, ahead), Model(page_size, ahead), ahead
        self.page_size, self.next_page = page_size, 1
        self.held = []  # (handle, prefix) of every lock

    def new_pages(self, n):
        self.next_page += n
        return list(range(self.next_page - n, self.next_page))

    def lock(self, handle, prefixes):
        self.cache.lock(handle)
        prefix = prefixes[-1] if prefixes else ()
        self.held.append((handle, prefix))
        self.model.locks.append(prefix)

    @rule(tokens=texts, lock=st.booleans())
    def match(self, tokens, lock):
        got, want = self.cache.match(tokens), self.model.match(tokens)
        assert got.pages == [self.model.page[prefix] for prefix in want]
        if lock:
            self.lock(got.handle, want)

    @rule(tokens=texts, cut=st.integers(0, 3), lock=st.booleans())
    def insert(self, tokens, cut, lock):
        pages = self.new_pages(max(0, (len(tokens) - self.ahead) // self.page_size - cut))
        got, want = self.cache.insert(tokens, pages), self.model.insert(tokens, pages)
        assert got.pages == [self.model.page[prefix] for prefix in want]
        if lock:
            self.lock(got.handle, want)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data):
        handle, prefix = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.unlock(handle)
        self.model.locks.remove(prefix)

    @rule(count=st.integers(0, 5))
    def evict(self, count):
        assert self.cache.evict(count) == self.model.evict(count)

    @rule()
    def reset(self):
        assert self.cache.reset() == self.model.evict(len(self.model.page))

    @invariant()
    def integrity(self):
        self.cache.check_integrity([handle for handle, _ in self.held])
        assert sorted(self.cache.pages()) == sorted(self.model.page.values())
        assert self.cache.evictable == len(self.model.evictable())
        for handle, prefix in self.held:
            tokens, pages = self.cache.path(handle)
            assert runs(tokens, self.ahead) == prefix
            ends = range(self.page_size, len(prefix) + 1, self.page_size)
            assert pages == [self.model.page[prefix[:end]] for end in ends]


Radix.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestRadix = Radix.TestCase
