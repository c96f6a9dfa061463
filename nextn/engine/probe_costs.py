"""What a step costs on this machine, measured at start-up: seconds of its parts by number of rows.

Steps of made-up tokens run on pages of a pool that nobody owns yet; whatever they leave there is written over
before it is read. All row counts are gone through again and again, and the least time of each is taken: so a
neighbour on the machine that is busy for a moment spoils one round and not one number. What the table misses,
whole steps tell (`nextn.engine.rehearsal`, and then `nextn.speculative.measured`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take
from nextn.ops.base import Draw, Drawn
from nextn.speculative.costs import KNOTS, StepCosts

SECONDS = 0.4  # for all; what has begun is finished
CONTEXT = 256  # positions before the rows
_FIRST = (1, 8, 64)  # tried whatever it takes: a line needs points
_ROUNDS = 5
_WIDE = 128  # rows; so many and more are only for prompts, and tried once
_NOTHING = {1: 1e-9}  # rows -> seconds
_FIXED = 1e-4  # seconds of a step besides its parts, until steps have told

GREEDY = Drawn(seed=0, stream=0, position=0, temperature=0.0, top_p=1.0, min_p=0.0, top_k=-1)


class CostProbe:
    def __init__(self, model: Model, pool: KVPool, draw: Draw) -> None:
        self.model, self.pool, self.draw = model, pool, draw
        pages = pool.data.shape[1] // pool.page_size - 1
        self.context = min(CONTEXT, pages * pool.page_size // 2, model.config.max_position_embeddings // 2)
        self.shared = self.context // pool.page_size
        self.room = pages - self.shared  # rows that have a page of their own
        self.hidden = torch.empty(0)
        self.random = random.Random(0)

    @torch.inference_mode()
    def costs(self, most: int, drafts: bool, seconds: float = SECONDS) -> StepCosts:
        """most: rows of a step. drafts: a draft layer makes them; else they are taken to cost nothing."""
        target: dict[int, float] = {}
        extend = {} if drafts else dict(_NOTHING)
        draft = {} if drafts else dict(_NOTHING)
        parts = [(self._target, target), (self._extend, extend), (self._draft, draft)][: 3 if drafts else 1]
        counts = [n for n in KNOTS if n <= min(most, self.room)]
        end = time.perf_counter() + seconds
        for at in range(_ROUNDS):
            for n in counts if at else _order(counts):
                known = n in target
                if n >= _WIDE and known or time.perf_counter() > end and (known or n not in _FIRST):
                    continue
                for run, points in parts:
                    if not known:
                        run(n)  # buffers grow, caches fill
                    points[n] = min(points.get(n, math.inf), _timed(run, n))
        return StepCosts(target, extend, draft, _FIXED)

    def _target(self, rows: int) -> None:
        self.hidden = self.model.forward(self._batch(rows), self.pool)
        self._choose(self.model.logits(take(self.model, self.hidden, list(range(rows)))), rows)

    def _extend(self, rows: int) -> None:
        """About two positions a request."""
        self._drafted(rows, -(-rows // 2))

    def _draft(self, rows: int) -> None:
        self._drafted(rows, rows)

    def _drafted(self, rows: int, guesses: int) -> None:
        """After a target step of as many rows, whose hidden states it takes."""
        state = self.model.draft(self._batch(rows), self.hidden, self.pool)
        self._choose(self.model.draft_logits(take(self.model, state, list(range(guesses)))), guesses)

    def _batch(self, rows: int) -> Any:
        """Each row a request of its own, on a page of its own. What lies before is everybody's."""
        shared = list(range(1, 1 + self.shared))
        vocabulary = self.model.config.vocab_size
        spans = [
            Span([self.random.randrange(vocabulary)], self.context, [*shared, 1 + self.shared + i])
            for i in range(rows)
        ]
        return self.model.batch(spans, self.pool.page_size)

    def _choose(self, logits: Tensor, rows: int) -> None:
        self.draw(logits[:rows], [GREEDY] * rows)


def _order(counts: list[int]) -> list[int]:
    """Those first that are needed most, then every other one of the rest, then what is left."""
    rest = [n for n in counts if n not in _FIRST]
    return [*(n for n in _FIRST if n in counts), *rest[1::2], *rest[::2]]


def _timed(run: Callable[[int], None], rows: int) -> float:
    begin = time.perf_counter()
    run(rows)
    return time.perf_counter() - begin
