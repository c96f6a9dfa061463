"""Where the pages of a request's prompt come from or go to. Plain data."""

from __future__ import annotations

import msgspec


class Remote(msgspec.Struct, frozen=True, array_like=True):
    """A request that two servers work on: the prefill server computes the prompt, the decode server the
    answer.

    room: the number by which both servers know the request. host, port: the prefill server's bootstrap port;
    "" and 0 on the prefill server itself. dp_rank: index of the replica or group of the prefill server that
    has the request; None: ask the bootstrap port."""

    room: int
    host: str = ""
    port: int = 0
    dp_rank: int | None = None
