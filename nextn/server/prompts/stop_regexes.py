"""Compiles the stop regexes of requests. Clients write them, so a worker process tries each regex first. Only
then does the server's process, which serves all clients, compile it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache

from nextn.grammar.fair_queue import Source
from nextn.grammar.limits import MIB, Busy, Limits
from nextn.grammar.workers import Workers
from nextn.server.protocol.context import client
from nextn.server.protocol.errors import bad_request, unavailable
from nextn.tokenizer.stop_regex import StopRegexes, check_length

# Limits of a worker. The limits for one regex are a fraction of these.
LIMITS = Limits(seconds=5.0, memory=128 * MIB)


@cache
def workers() -> Workers:
    """The worker processes: one set for the server, started at the first request that needs them."""
    return Workers("nextn.grammar.trial:stop_regexes", {}, LIMITS)


async def compiled_regexes(patterns: Sequence[str], within: str = "") -> StopRegexes | None:
    """The compiled patterns, or None if there are none. within: prefix of the field's name in errors. Raises
    ApiError: 400 for a bad pattern, 503 if the workers are busy."""
    if not patterns:
        return None
    try:
        for pattern in patterns:
            check_length(pattern)
        source = Source.of(client.get())
        tried = [workers().submit({"pattern": pattern}, source) for pattern in patterns]
        await asyncio.gather(*map(asyncio.wrap_future, tried))
        return await asyncio.to_thread(StopRegexes, patterns)
    except Busy as e:
        raise unavailable(f"{within}stop_regex: {e}", "grammars_busy") from e
    except ValueError as e:
        raise bad_request(f"{within}stop_regex: {e}", f"{within}stop_regex") from e
