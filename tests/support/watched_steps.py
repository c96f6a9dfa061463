"""Counts the steps of ranks that share experts, and forces --enable-two-batch-overlap: with it, every step
runs in two halves. (In all processes of ranks: `support.forked_ranks`.)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from nextn.distributed.memory import HEADER, Memory, Numbers
from nextn.engine import rank
from nextn.engine.halves import Halves
from nextn.engine.shared_pass import SharedPass
from nextn.layers.batch import Span

STEPS, HALVES, REBALANCINGS = range(3)
MOST_RANKS = 64


class Watched(SharedPass):
    """steps: of all ranks, `Numbers` in shared memory."""

    def __init__(self, *args: Any, steps: Numbers) -> None:
        super().__init__(*args)
        self._counts, self._row = steps, 3 * self.world.share.rank

    def forward(self, spans: Sequence[Span]) -> Tensor | None:
        found = super().forward(spans)
        if self.world.busy:
            self._counts[self._row + STEPS] += 1
            self._counts[self._row + HALVES] += self.world.in_halves
            if self.balancer is not None:
                self._counts[self._row + REBALANCINGS] = self.balancer.rebalancings
        return found


def watch(memory: Memory, set_attribute: Callable[[Any, str, Any], None]) -> None:
    """All ranks that this process makes from now on are watched."""
    steps = Numbers(memory.mapped(HEADER), 0)
    set_attribute(rank, "SharedPass", partial(Watched, steps=steps))
    set_attribute(rank, "Halves", partial(Halves, always=True))


class Watches:
    def __init__(self, memory: Memory) -> None:
        self._counts = Numbers(memory.mapped(HEADER), 0)

    def clear(self) -> None:
        for i in range(3 * MOST_RANKS):
            self._counts[i] = 0

    def check(self, size: int, halves: bool, moves: bool | None) -> None:
        """size: number of ranks. halves: whether all steps since `clear` must have run in two halves; else,
        none. moves: whether experts must have moved; else, none may have; None: both are right."""
        numbers = self._counts.first(3 * size)
        steps, in_halves, rebalancings = numbers[STEPS::3], numbers[HALVES::3], numbers[REBALANCINGS::3]
        assert min(steps) > 0
        assert len({*steps}) == len({*rebalancings}) == 1, (steps, rebalancings)
        assert in_halves == (steps if halves else (0,) * size)
        assert moves is None or (rebalancings[0] > 0) == moves
