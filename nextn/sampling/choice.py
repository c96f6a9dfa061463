"""What the choice of one token depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nextn.constraint import Allowed
from nextn.ops.base import Drawn
from nextn.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Choice:
    """What one choice depends on besides its logits. The token chosen becomes number `index`."""

    params: SamplingParams
    tokens: Sequence[int]  # committed tokens of the request
    path: Sequence[int]  # drafts assumed accepted after them
    num_prompt: int
    end_ids: frozenset[int]  # what ends the request; forbidden before min_tokens
    allowed: Allowed | None = None  # by the request's grammar; None: everything

    @property
    def index(self) -> int:
        return len(self.tokens) + len(self.path)

    @property
    def drawn(self) -> Drawn:
        return drawn(self.params, self.index)


def drawn(params: SamplingParams, position: int, rows: int = 1) -> Drawn:
    p = params
    return Drawn(p.seed, p.stream, position, p.temperature, p.top_p, p.min_p, p.top_k, rows)
