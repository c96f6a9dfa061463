"""A forward pass of the target that all ranks which share its experts run together."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from nextn.distributed.step_world import StepWorld
from nextn.engine.balance import Balancer
from nextn.engine.halves import Halves, in_halves
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model


class SharedPass:
    """halves: decides whether a step runs in two halves; None: never. balancer: moves experts between steps;
    None: experts do not move."""

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        world: StepWorld,
        halves: Halves | None,
        balancer: Balancer | None = None,
    ) -> None:
        self.model, self.pool, self.world, self.halves = model, pool, world, halves
        self.balancer = balancer

    def forward(self, spans: Sequence[Span]) -> Tensor | None:
        """Hidden states as from `Model.forward`; None without spans. All other ranks must call it too. Raises
        PeerGone."""
        rows = first = sum(len(span.tokens) for span in spans)
        wanted, cut = False, spans
        if self.halves is not None:
            cut, first = in_halves(spans)
            wanted = self.halves.wanted(rows)
        if not self.world.step(first, rows - first, wanted):
            return None
        begin, before = time.perf_counter(), self.world.waits
        now = cut if self.world.in_halves else spans
        hidden = self.model.forward(self.model.batch(now, self.pool.page_size), self.pool)
        if self.halves is not None:
            seconds, waited = time.perf_counter() - begin, self.world.waits.since(before).total
            self.halves.took(rows, self.world.in_halves, seconds, waited)
        if self.balancer is not None:
            self.balancer.stepped()
        return hidden if spans else None
