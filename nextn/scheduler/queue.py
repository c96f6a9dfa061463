"""The requests that wait: in what order, and who of them is next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.kvcache.manager import KVManager
from nextn.request import PromptGroup, Request
from nextn.scheduler import groups

MANY = 64  # prompts: more of them change nothing, any budget is enough for less


def rank(req: Request) -> tuple[int, int]:
    return (-req.priority, req.order)


def left(req: Request) -> int:
    """Tokens that it computes before it decodes, or less where the cache is still to be asked."""
    return len(req.tokens) - req.committed


def next_in_line(waiting: Sequence[Request], kv: KVManager, max_left: int | None) -> Request | None:
    """The first that does not wait for another of its group. That one runs, so others go ahead of those that
    wait only until its prompt is complete. max_left: of the first one's priority, and with at
    most so many tokens left; None: any."""
    held: set[PromptGroup | None] = set()
    for req in waiting:
        if max_left is not None and req.priority < waiting[0].priority:
            return None
        if req.group in held or (max_left is not None and left(req) > max_left):
            continue
        if not groups.waits(req, kv):
            return req
        held.add(req.group)
    return None


def count_prompts(prefilling: Sequence[Request], waiting: Sequence[Request]) -> int:
    """How many different prompts are under way or wait; many count as MANY."""
    some = (*prefilling, *waiting[:MANY])
    return min(MANY, len({req.rid if req.group is None else id(req.group) for req in some}))
