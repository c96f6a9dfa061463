"""Work that is done for many requests together, where one of them may spoil it. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

log = logging.getLogger("nextn.engine")

Item = TypeVar("Item")
Found = TypeVar("Found")


def isolated(
    work: Callable[[Sequence[Item]], Sequence[Found]],
    items: Sequence[Item],
    failed: Callable[[Item, Exception], Found],
    what: str,
) -> list[Found]:
    """work(items), which finds something for each. If it raises, it is done for each alone, and those for
    which it raises again get what `failed` says. `what` names the work in the log.

    >>> isolated(lambda xs: [1 // x for x in xs], [1, 0, 1], lambda x, e: None, "dividing")
    [1, None, 1]
    """
    try:
        return list(work(items))
    except Exception:
        log.exception("%s failed for %d requests together; now each alone", what, len(items))
    found: list[Found] = []
    for item in items:
        try:
            found += work([item])
        except Exception as e:
            found.append(failed(item, e))
    return found
