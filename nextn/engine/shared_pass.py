"""A pass through the target in which all ranks that share its experts take part."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from nextn.distributed.shared_world import SharedWorld
from nextn.engine.halves import Halves, in_halves
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model


class SharedPass:
    """halves: who decides whether a step goes in two halves; None: none does."""

    def __init__(self, model: Model, pool: KVPool, world: SharedWorld, halves: Halves | None) -> None:
        self.model, self.pool, self.world, self.halves = model, pool, world, halves

    def forward(self, spans: Sequence[Span]) -> Tensor | None:
        """Hidden states as `Model.forward` has them; None without spans. All other ranks call it too. Raises
        PeerGone."""
        rows = first = sum(len(span.tokens) for span in spans)
        wanted = False
        if self.halves is not None:
            spans, first = in_halves(spans)
            wanted = self.halves.wanted(rows)
        begin, waited = time.perf_counter(), self.world.waited
        if not self.world.step(first, rows - first, wanted):
            return None
        hidden = self.model.forward(self.model.batch(spans, self.pool.page_size), self.pool)
        if self.halves is not None:
            seconds = time.perf_counter() - begin
            self.halves.took(rows, self.world.in_halves, seconds, self.world.waited - waited)
        return hidden if spans else None
