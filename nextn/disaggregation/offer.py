"""A request whose pages may be asked for, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from nextn.disaggregation.connection import Connection


@dataclass(slots=True)
class Offer:
    """number: no two have the same."""

    rid: str
    room: int
    tokens: int
    prompt: bytes
    number: int = field(default_factory=count().__next__)
    committed: int = 0
    slots: int | None = None  # of all of it, once it is finished
    cached_tokens: int = 0
    finished: float = 0.0
    connection: Connection | None = None  # None: nobody asked
    transfer: int = -1
    asked: float = 0.0
    next_page: int = 0  # to be handed out by `wanted`
    put_page: int = 0  # to be put
    handed: int = 0  # bytes between the two
    done: bool = False
