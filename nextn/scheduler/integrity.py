"""Checks of a scheduler's requests between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nextn.request import Request
from nextn.scheduler.queue import rank


def check_requests(
    by_rid: Mapping[str, Request],
    running: Sequence[Request],
    waiting: Sequence[Request],
    fetching: Iterable[Request],
) -> None:
    """AssertionError if a request is in a wrong list, or in none."""
    assert {r.rid for r in (*running, *waiting, *fetching)} == set(by_rid)
    assert sorted(running, key=rank) == list(running)
    assert sorted(waiting, key=rank) == list(waiting)
    for r in by_rid.values():
        assert r.group is None or r in r.group.members
        assert r.group is None or all(by_rid.get(m.rid) is m for m in r.group.members)
    for r in waiting:
        assert not r.pages
        assert r.committed == r.draft_to == 0
        assert not len(r.draft)
    for r in running:
        assert 0 <= r.cached <= r.committed < len(r.tokens) <= r.limit
