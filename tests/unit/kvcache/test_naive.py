"""The cache that keeps nothing keeps nothing, and counts its locks all the same."""

import pytest

from nextn.kvcache.naive import NaiveCache


def test_keeps_nothing():
    cache = NaiveCache()
    pages, handle = cache.insert([1, 2, 3], [7, 8])
    assert pages == []
    assert cache.match([1, 2, 3]).pages == []
    assert cache.pages() == cache.evict(5) == cache.reset() == []
    assert cache.path(handle) == ([], [])
    assert cache.evictable == 0


def test_counts_locks():
    cache = NaiveCache()
    handle = cache.match([1, 2]).handle
    cache.lock(handle)
    cache.check_integrity([handle])
    with pytest.raises(AssertionError, match="locks held"):
        cache.check_integrity([])
    cache.unlock(handle)
    cache.check_integrity([])
    with pytest.raises(AssertionError):
        cache.unlock(handle)
