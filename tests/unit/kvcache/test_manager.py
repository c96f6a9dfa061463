"""The KV manager on examples: who owns which page after each call, and what is refused."""

import pytest

from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.radix import RadixCache
from nextn.request import Request, SamplingParams


def make(pages=8, page_size=2, radix=True):
    return KVManager(pages + 1, page_size, RadixCache(page_size) if radix else NaiveCache())


def request(text, rid="r"):
    return Request(rid, [ord(c) for c in text], SamplingParams(), num_prompt=len(text))


def state(req):
    return list(req.pages), req.cached, req.committed, req.lock


def run(kv, req):
    """Admits a request and commits all of its tokens but the last."""
    kv.admit(req)
    assert kv.reserve(req, len(req.tokens) - 1)
    kv.commit(req, len(req.tokens) - 1 - req.committed)


def test_pages_for():
    kv = make(page_size=4)
    assert [kv.pages_for(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_figures_count_what_requests_hold():
    kv = make(pages=8, page_size=2)
    assert (kv.total_tokens, kv.used_tokens, kv.available) == (16, 0, 8)
    req = request("abcdef")
    run(kv, req)
    assert (kv.used_tokens, kv.available) == (6, 5)
    kv.share(req)
    assert (kv.used_tokens, kv.available) == (6, 5)
    kv.release(req)
    assert (kv.used_tokens, kv.available) == (0, 8)


@pytest.mark.parametrize("page_size", [1, 2, 3])
def test_a_hit_leaves_the_last_token_to_compute(page_size):
    kv = make(pages=20, page_size=page_size)
    first = request("abcdefghij")
    run(kv, first)
    kv.release(first)
    for n in range(1, 11):
        req = request("abcdefghij"[:n])
        kv.admit(req)
        assert req.cached == req.committed == (n - 1) // page_size * page_size
        assert len(req.pages) == req.cached // page_size
        kv.check_integrity([req])
        kv.release(req)


def test_reserve_evicts_what_nobody_holds():
    kv = make(pages=4, page_size=2)
    first = request("abcdefg")
    run(kv, first)
    kv.release(first)
    second = request("abcX")
    kv.admit(second)
    assert second.cached == 2
    assert kv.reserve(second, 8)
    assert len(second.pages) == 4
    kv.check_integrity([second])


def test_reserve_without_room_changes_nothing():
    kv = make(pages=4, page_size=2)
    first, second, third = request("abcdefg"), request("abcX", "s"), request("pqr", "t")
    run(kv, first)
    kv.share(first)
    kv.admit(second)
    assert kv.reserve(second, 4)
    before = state(second), kv.available
    assert not kv.reserve(second, 6)
    assert (state(second), kv.available) == before
    kv.admit(third)
    assert not kv.reserve(third, 1)
    assert third.pages == []
    assert kv.reserve(third, 0)
    kv.release(first)
    assert kv.reserve(third, 3)
    kv.check_integrity([second, third])


def test_nothing_is_evicted_for_a_reservation_that_fails():
    kv = make(pages=4, page_size=2)
    first = request("abcde")
    run(kv, first)
    kv.release(first)
    other = request("pq")
    kv.admit(other)
    assert not kv.reserve(other, 10)
    kv.release(other)
    again = request("abcde")
    kv.admit(again)
    assert again.cached == 4


def test_commit_is_bounded_by_pages_and_by_known_tokens():
    kv = make(page_size=2)
    req = request("abcd")
    kv.admit(req)
    assert kv.reserve(req, 2)
    with pytest.raises(AssertionError, match="reserved"):
        kv.commit(req, 3)
    assert kv.reserve(req, 4)
    with pytest.raises(AssertionError, match="successor"):
        kv.commit(req, 4)
    kv.commit(req, 3)
    assert req.committed == 3


def test_trim_keeps_what_is_committed():
    kv = make(page_size=2)
    req = request("abcdef")
    kv.admit(req)
    assert kv.reserve(req, 12)
    kv.commit(req, 5)
    kv.trim(req, 8)
    assert len(req.pages) == 4
    kv.trim(req, 8)
    assert len(req.pages) == 4
    kv.trim(req, 0)
    assert len(req.pages) == 3
    assert kv.available == 5
    kv.check_integrity([req])


def test_a_duplicate_goes_over_to_the_cached_page():
    kv = make(pages=8, page_size=2)
    first, second = request("abcdef"), request("abcdXYZ", "s")
    run(kv, first)
    run(kv, second)
    assert second.cached == 0
    own = list(second.pages)
    kv.share(first)
    kv.share(second)
    assert second.pages == [first.pages[0], own[1], own[2]]
    assert (first.cached, second.cached) == (4, 6)
    assert kv.available == 8 - 5  # a b, c d of each, e of the first, X Y of the second
    kv.check_integrity([first, second])
    kv.release(first)
    kv.check_integrity([second])
    third = request("abcdXYZ", "t")
    kv.admit(third)
    assert third.pages == second.pages
    kv.release(second)
    assert kv.available == 5
    kv.check_integrity([third])


def test_release_keeps_the_tokens_and_shares_what_was_committed():
    kv = make(page_size=2)
    req = request("abcdef")
    run(kv, req)
    plan = req.pages
    kv.release(req)
    assert state(req) == ([], 0, 0, None)
    assert len(plan) == 3  # the list that a plan may still hold
    kv.check_integrity([])
    kv.admit(req)
    assert req.committed == 4
    kv.check_integrity([req])


def test_flush_drops_what_nobody_holds():
    kv = make(pages=8, page_size=1)
    first, second = request("abcd"), request("abX", "s")
    run(kv, first)
    kv.share(first)
    run(kv, second)
    kv.release(second)
    kv.flush()
    kv.check_integrity([first])
    assert kv.available == 5
    kv.release(first)
    kv.flush()
    first.tokens.append(1)
    kv.admit(first)
    assert first.cached == 0


def test_without_a_prefix_cache_nothing_is_found_and_nothing_lost():
    kv = make(pages=8, page_size=2, radix=False)
    req = request("abcdef")
    run(kv, req)
    kv.share(req)
    assert req.cached == 0
    kv.check_integrity([req])
    kv.release(req)
    assert kv.available == 8
    kv.admit(req)
    assert req.cached == 0


def test_a_request_is_admitted_once_and_released_once():
    kv = make()
    req = request("abc")
    with pytest.raises(AssertionError, match="before it was admitted"):
        kv.reserve(req, 1)
    kv.admit(req)
    with pytest.raises(AssertionError, match="twice"):
        kv.admit(req)
    kv.release(req)
    with pytest.raises(AssertionError, match="before it was admitted"):
        kv.release(req)


@pytest.mark.parametrize("wrong", ["lost page", "swapped page", "lost request", "other tokens", "cached"])
def test_integrity_notices(wrong):
    kv = make()
    req = request("abcdef")
    run(kv, req)
    kv.share(req)
    kv.check_integrity([req])
    if wrong == "lost page":
        req.pages.pop()
    elif wrong == "swapped page":
        req.pages[0], req.pages[1] = req.pages[1], req.pages[0]
    elif wrong == "other tokens":
        req.tokens[4] += 1  # the successor of the last cached slot
    elif wrong == "cached":
        req.cached -= 2
    with pytest.raises(AssertionError):
        kv.check_integrity([] if wrong == "lost request" else [req])
