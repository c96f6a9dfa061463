"""Many requests over one small pool, in any order of calls, against what "is" in every slot.

A slot's content is the whole text up to the slot's last successor (one for each NextN layer), for that is
what its KV and NextN entries depend on; until that one is committed it is not true for all of them. Each
reservation scribbles over what it may write. So a page shared with the wrong request, freed too early or
evicted while in use shows as wrong content, whatever the bookkeeping says of itself.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.radix import RadixCache
from nextn.request import Request, SamplingParams

tokens = st.integers(0, 1)


class Requests(RuleBasedStateMachine):
    @initialize(
        pages=st.integers(1, 14),
        page_size=st.sampled_from([1, 2, 3]),
        ahead=st.sampled_from([1, 1, 2, 3]),
        radix=st.sampled_from([True] * 4 + [False]),
    )
    def start(self, pages, page_size, ahead, radix):
        cache = RadixCache(page_size, ahead) if radix else NaiveCache()
        self.ahead = ahead
        self.kv, self.capacity, self.page_size = KVManager(pages + 1, page_size, cache), pages, page_size
        self.content = {}
        self.live, self.waiting = [], []
        self.made = 0

    def slot(self, req, i):
        return req.pages[i // self.page_size], i % self.page_size

    def pick(self, data, requests):
        return requests[data.draw(st.integers(0, len(requests) - 1))]

    def reserve(self, req, length):
        """The manager's answer, checked against what the pool can give."""
        before = list(req.pages), req.cached, req.committed, req.lock, self.kv.available
        need = self.kv.pages_for(length) - len(req.pages)
        ok = self.kv.reserve(req, length)
        assert ok == (need <= before[-1])
        if not ok:
            assert (list(req.pages), req.cached, req.committed, req.lock, self.kv.available) == before
            return False
        assert len(req.pages) == max(len(before[0]), self.kv.pages_for(length))
        for i in range(req.committed, len(req.pages) * self.page_size):
            self.content[self.slot(req, i)] = "a guess"
        return True

    def true(self, req):
        """Slots that are true for every NextN layer."""
        return max(req.cached, req.committed - self.ahead + 1)

    def commit(self, req, n):
        for i in range(self.true(req), req.committed + n):
            text = tuple(req.tokens[: i + 1 + self.ahead])
            self.content[self.slot(req, i)] = text if len(text) == i + 1 + self.ahead else "a guess"
        self.kv.commit(req, n)
        self.kv.extended(req)

    @rule(prompt=st.lists(tokens, min_size=1, max_size=14))
    def add(self, prompt):
        self.waiting.append(Request(str(self.made), prompt, SamplingParams(), num_prompt=len(prompt)))
        self.made += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data):
        req = self.pick(data, self.waiting)
        self.kv.admit(req)
        assert req.cached == req.committed == len(req.pages) * self.page_size
        assert req.committed <= len(req.tokens) - 1
        self.waiting.remove(req)
        self.live.append(req)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), budget=st.integers(1, 8), share=st.booleans())
    def extend(self, data, budget, share):
        """A chunk of the prompt, without the root."""
        req = self.pick(data, self.live)
        end = min(len(req.tokens) - 1, req.committed + budget)
        if self.reserve(req, end):
            self.commit(req, end - req.committed)
            if share:
                self.kv.share(req)

    @precondition(lambda self: any(r.committed == len(r.tokens) - 1 for r in self.live))
    @rule(
        data=st.data(),
        new=st.lists(tokens, min_size=1, max_size=4),
        rejected=st.integers(0, 3),
        trim=st.booleans(),
    )
    def decode(self, data, new, rejected, trim):
        """The root and len(new) - 1 accepted drafts."""
        req = self.pick(data, [r for r in self.live if r.committed == len(r.tokens) - 1])
        if self.reserve(req, req.committed + len(new) + rejected):
            req.tokens += new
            self.commit(req, len(new))
            if trim:
                self.kv.trim(req, req.committed + 1)
                assert len(req.pages) <= self.kv.pages_for(req.committed + 1)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def share(self, data):
        req = self.pick(data, self.live)
        before = req.cached, len(req.pages), self.kv.available
        self.kv.share(req)
        assert req.cached >= before[0]
        assert len(req.pages) == before[1]
        assert self.kv.available >= before[2]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), back=st.booleans())
    def release(self, data, back):
        req = self.pick(data, self.live)
        self.live.remove(req)
        self.kv.release(req)
        assert (req.pages, req.cached, req.committed, req.lock) == ([], 0, 0, None)
        if back:
            self.waiting.append(req)

    @rule()
    def flush(self):
        available = self.kv.available
        self.kv.flush()
        assert self.kv.available == available

    @invariant()
    def integrity(self):
        self.kv.check_integrity(self.live)
        held = {page for req in self.live for page in req.pages}
        assert 0 not in held
        assert self.kv.available == self.capacity - len(held)
        assert self.kv.used_tokens + self.kv.available * self.page_size == self.kv.total_tokens
        for req in self.live:
            for i in range(self.true(req)):
                assert self.content[self.slot(req, i)] == tuple(req.tokens[: i + 1 + self.ahead])

    def teardown(self):
        if hasattr(self, "kv"):
            for req in self.live:
                self.kv.release(req)
            assert self.kv.available == self.capacity
            self.kv.flush()
            self.kv.check_integrity([])


Requests.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestRequests = Requests.TestCase
