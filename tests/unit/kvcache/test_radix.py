"""The radix cache on examples: what matches, who owns a page after an insert, locks, order of eviction."""

import time

import pytest

from nextn.kvcache.radix import RadixCache


def tokens(text):
    return [ord(c) for c in text]


def insert(cache, text, pages):
    return cache.insert(tokens(text), pages).pages


def match(cache, text):
    return cache.match(tokens(text)).pages


def test_a_page_is_known_by_its_successor_too():
    cache = RadixCache(2)
    insert(cache, "abcde", [7, 8])
    assert match(cache, "abcde") == [7, 8]
    assert match(cache, "abcdX") == [7]  # slot d belongs to (d, e), so not page (c d) with X after it
    assert match(cache, "abX") == []
    assert match(cache, "abcde and more") == [7, 8]


@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 15, 16, 17, 32, 33])
def test_a_match_leaves_a_token_to_compute(size, n):
    cache = RadixCache(size)
    text = list(range(100))
    cache.insert(text, list(range(1, 99 // size + 1)))
    assert len(cache.match(text[:n]).pages) == max(0, n - 1) // size


def test_insert_wants_the_successor_of_the_last_page():
    with pytest.raises(AssertionError, match="successor"):
        insert(RadixCache(2), "abcd", [7, 8])


def test_insert_answers_with_the_pages_it_had():
    cache = RadixCache(1)
    assert insert(cache, "abcd", [1, 2, 3]) == [1, 2, 3]
    assert insert(cache, "abXY", [4, 5, 6]) == [1, 5, 6]
    assert insert(cache, "abcd", [7, 8, 9]) == [1, 2, 3]
    assert insert(cache, "abcdefg", [1, 2, 3, 4, 7, 8]) == [1, 2, 3, 4, 7, 8]
    assert insert(cache, "abc", [9, 10]) == [1, 2]
    assert sorted(cache.pages()) == [1, 2, 3, 4, 5, 6, 7, 8]
    cache.check_integrity([])


def test_insert_looks_no_further_than_the_pages_it_is_given():
    cache = RadixCache(1)
    insert(cache, "abcde", [1, 2, 3, 4])
    assert insert(cache, "abcde", [7, 8]) == [1, 2]
    assert insert(cache, "abcde", []) == []
    cache.check_integrity([])


def test_answers_are_copies():
    cache = RadixCache(1)
    given, text = [1, 2, 3], tokens("abcd")
    cache.insert(text, given).pages.clear()
    cache.match(text).pages.append(99)
    given.clear()
    text.clear()
    assert match(cache, "abcd") == [1, 2, 3]
    cache.check_integrity([])


def test_the_oldest_goes_first_and_from_its_end():
    cache = RadixCache(1)
    insert(cache, "abcd", [1, 2, 3])
    insert(cache, "abXY", [1, 4, 5])
    insert(cache, "pqr", [6, 7])
    match(cache, "abcd")
    assert cache.evictable == 7
    assert cache.evict(3) == [5, 4, 7]
    assert cache.evict(0) == []
    assert cache.evict(2) == [6, 3]
    assert match(cache, "abcd") == [1, 2]
    assert cache.evict(9) == [2, 1]
    assert cache.evictable == 0
    cache.check_integrity([])


def test_a_lock_covers_the_path_and_nothing_more():
    cache = RadixCache(1)
    insert(cache, "abcdef", [1, 2, 3, 4, 5])
    handle = cache.match(tokens("abcX")).handle
    cache.lock(handle)
    cache.lock(handle)
    assert cache.path(handle) == (tokens("abc"), [1, 2])
    assert cache.evictable == 3
    assert cache.reset() == [5, 4, 3]
    cache.check_integrity([handle, handle])
    cache.unlock(handle)
    assert cache.reset() == []
    cache.unlock(handle)
    assert cache.reset() == [2, 1]
    with pytest.raises(AssertionError, match="more often"):
        cache.unlock(handle)


def test_a_split_leaves_a_handle_what_it_covered():
    cache = RadixCache(2)
    handle = cache.insert(tokens("abcdefghi"), [1, 2, 3, 4]).handle
    cache.lock(handle)
    insert(cache, "abcdeXY", [5, 6, 7])
    assert cache.path(handle) == (tokens("abcdefghi"), [1, 2, 3, 4])
    assert cache.evictable == 1
    cache.check_integrity([handle])
    cache.unlock(handle)
    assert cache.evictable == 5
    assert sorted(cache.reset()) == [1, 2, 3, 4, 7]


def test_integrity_notices_locks_that_nobody_holds():
    cache = RadixCache(1)
    handle = cache.insert(tokens("abc"), [1, 2]).handle
    with pytest.raises(AssertionError, match="locks held"):
        cache.check_integrity([handle])
    cache.lock(handle)
    with pytest.raises(AssertionError, match="locks held"):
        cache.check_integrity([])
    cache.unlock(handle)
    cache.reset()
    with pytest.raises(AssertionError, match="not in the tree"):
        cache.check_integrity([handle])


def test_eviction_does_not_look_at_the_whole_tree_for_each_page():
    """10000 leaves, evicted a page at a time: seconds if each call scanned them, milliseconds as it is."""
    cache = RadixCache(1)
    for i in range(10000):
        cache.insert([i, i, i], [2 * i + 1, 2 * i + 2])
    begin = time.process_time()
    for i in range(10000):
        assert cache.evict(1) == [2 * i + 2]
        assert cache.evict(1) == [2 * i + 1]
    assert time.process_time() - begin < 2.0
