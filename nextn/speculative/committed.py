"""What a step tells the drafter of each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nextn.gate import Gate


@dataclass(slots=True)  # frozen ones take three times as long to make, and every step makes many
class Committed:
    """What a step settled for one request: positions start .. start + len(following) - 1 are true, counted
    from the first one that the drafter sees, as `pages` are."""

    rid: str
    start: int
    rows: Sequence[int]  # of `hidden`, those of these positions
    following: Sequence[int]  # following[i]: the token after position start + i
    pages: Sequence[int]
    want: int  # depth of the draft to propose
    history: Sequence[int]  # committed before the step
    chosen: Sequence[int]  # by the step; empty amid a prompt
    draft_from: int = 0  # the first position that the drafter sees, in the request's own count
    extend: bool = True  # else the positions wait until a step that extends, and `want` is 0
    gate: Gate | None = None  # what may cut the draft short; the same for all that have one
