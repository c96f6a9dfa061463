"""The page allocator: all or nothing, nothing twice, page 0 never; against a set as the model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nextn.kvcache.allocator import PageAllocator


def test_hands_out_every_page_but_the_null_page():
    pages = PageAllocator(5)
    assert (pages.capacity, pages.num_free) == (4, 4)
    assert sorted(pages.alloc(4)) == [1, 2, 3, 4]
    assert pages.num_free == 0


def test_all_or_nothing():
    pages = PageAllocator(4)
    taken = pages.alloc(2)
    assert pages.alloc(2) is None
    assert pages.num_free == 1
    pages.check_integrity(taken)
    assert len(pages.alloc(1)) == 1
    assert pages.alloc(0) == []
    assert pages.alloc(1) is None


def test_only_the_null_page():
    pages = PageAllocator(1)
    assert (pages.capacity, pages.num_free) == (0, 0)
    assert pages.alloc(1) is None
    pages.check_integrity([])


@pytest.mark.parametrize("again", [[2], [0], [3, 3]])
def test_freeing_what_nobody_holds_is_caught(again):
    pages = PageAllocator(4)
    pages.alloc(3)
    pages.free([2])
    with pytest.raises(AssertionError, match="nobody holds it"):
        pages.free(again)


@pytest.mark.parametrize("owned", [[1, 2], [1, 2, 3, 4], [1, 2, 2], [1, 2, 3, 3], [0, 1, 2, 3], [1, 2, 4]])
def test_integrity_notices_lost_doubled_and_foreign_pages(owned):
    pages = PageAllocator(6)
    pages.alloc(3)
    pages.check_integrity([3, 1, 2])
    with pytest.raises(AssertionError):
        pages.check_integrity(owned)


class Allocation(RuleBasedStateMachine):
    @initialize(num_pages=st.integers(1, 12))
    def start(self, num_pages):
        self.pages = PageAllocator(num_pages)
        self.all = set(range(1, num_pages))
        self.held = []

    @rule(n=st.integers(0, 6))
    def alloc(self, n):
        free = self.all - set(self.held)
        got = self.pages.alloc(n)
        if n > len(free):
            assert got is None
        else:
            assert len(got) == n
            assert set(got) <= free
            self.held += got

    @rule(data=st.data())
    def free(self, data):
        pages = data.draw(st.lists(st.sampled_from(self.held), unique=True)) if self.held else []
        self.pages.free(pages)
        self.held = [page for page in self.held if page not in pages]

    @invariant()
    def integrity(self):
        self.pages.check_integrity(self.held)
        assert self.pages.num_free == len(self.all) - len(self.held)
        assert self.pages.capacity == len(self.all)


Allocation.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
TestAllocation = Allocation.TestCase
