"""A request whose pages a sink may fetch, and the state of its transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from nextn.disaggregation.connection import Connection


@dataclass(slots=True)
class Offer:
    """number: unique, because a request id can be used again. tokens, prompt: length and hash of the
    prompt."""

    rid: str
    room: int
    tokens: int
    prompt: bytes
    number: int = field(default_factory=count().__next__)
    committed: int = 0
    slots: int | None = None  # number of slots in total; None: still computing
    cached_tokens: int = 0
    finished: float = 0.0
    connection: Connection | None = None  # None: no sink has asked for the room
    transfer: int = -1
    begun: float | None = None  # when the sink was ready for pages; None: not yet
    next_page: int = 0  # next page that `wanted` hands out
    put_page: int = 0  # next page to send
    handed: int = 0  # bytes of the pages from put_page to next_page
    done: bool = False
