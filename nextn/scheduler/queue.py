"""The order of waiting requests, and which of them is next."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.kvcache.manager import KVManager
from nextn.request import PromptGroup, Request
from nextn.scheduler import groups

MANY = 64  # largest count of prompts; a larger one would not change a budget


def rank(req: Request) -> tuple[int, int]:
    return (-req.priority, req.order)


def next_in_line(waiting: Sequence[Request], kv: KVManager, max_left: int | None) -> Request | None:
    """The first request that does not wait for another of its group. That other one runs, so requests are
    overtaken only until its prompt is complete. max_left: only a request with the first one's priority and
    at most this number of tokens, some of which the prefix cache may have; None: any."""
    held: set[PromptGroup | None] = set()
    for req in waiting:
        if max_left is not None and req.priority < waiting[0].priority:
            return None
        if req.group in held or (max_left is not None and len(req.tokens) > max_left):
            continue
        if not groups.waits(req, kv):
            return req
        held.add(req.group)
    return None


def count_prompts(prefilling: Sequence[Request], waiting: Sequence[Request]) -> int:
    """Number of different prompts that run or wait, at most MANY."""
    some = (*prefilling, *waiting[:MANY])
    return min(MANY, len({req.rid if req.group is None else id(req.group) for req in some}))
