"""Does work for many requests together, and separately if one of them makes it fail. Pure."""

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
    """work(items), which has a result for each item. If it raises, it is called for each item alone. If that
    raises too, the item's result is failed(item, error). `what` names the work in the log.

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
