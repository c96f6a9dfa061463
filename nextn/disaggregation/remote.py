"""Where the pages of a request's prompt come from or go to. Plain data."""

from __future__ import annotations

import msgspec


class Remote(msgspec.Struct, frozen=True, array_like=True):
    """A request that two servers work on: the prefill server computes its prompt, the decode server its
    answer.

    room: by which both know it. host, port: of the prefill server's bootstrap port; "" and 0 on the prefill
    server itself. dp_rank: of the prefill server's replicas, or groups, the one that has it; None: the
    bootstrap port knows."""

    room: int
    host: str = ""
    port: int = 0
    dp_rank: int | None = None
