"""What a step costs: seconds by number of requests and of rows, rehearsed at start-up.

A step of the engine has parts whose time depends on how much they run over:

    request  every request that decodes: its part of planning, attention and sampling
    target   the model over every row of the step: roots, drafts to verify, pieces of prompts
    extend   the draft layer over newly true rows, and the first draft of every request that drafts
    draft    one further draft for each of n requests (every depth beyond the first is one such pass)
    fixed    what a step takes besides

What steps turn out to take beside that is learnt in `measured`, and where drafts are gated in `pace`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


class CostCurve:
    """Seconds as a function of rows: never falling, straight between its knots and beyond the last."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """points: rows -> seconds. ValueError unless there is one and all are positive."""
        if not points or any(r < 1 or not (0.0 < s < math.inf) for r, s in points.items()):
            raise ValueError(f"a cost needs points of rows >= 1 and seconds > 0, got {dict(points)}")
        self.rows = sorted(points)
        self._seconds = _never_falling([points[r] for r in self.rows])
        self._table: list[float] = [0.0]
        self._array = np.zeros(1)

    def __call__(self, rows: int) -> float:
        return self.upto(rows)[rows]

    def many(self, rows: np.ndarray) -> np.ndarray:
        """Seconds of each of these numbers of rows."""
        self.upto(int(rows.max()))
        found: np.ndarray = self._array[rows]
        return found

    def upto(self, rows: int) -> list[float]:
        """The table of seconds by number of rows, 0.0 for none, at least up to `rows`. Not to be written
        to."""
        if rows >= len(self._table):
            self._fill(rows + rows // 2 + 8)
        return self._table

    def _fill(self, rows: int) -> None:
        at, seconds = self.rows, self._seconds
        table = [0.0] + [seconds[0]] * at[0]
        for k in range(1, len(at)):
            slope = (seconds[k] - seconds[k - 1]) / (at[k] - at[k - 1])
            table += [seconds[k - 1] + slope * n for n in range(1, at[k] - at[k - 1] + 1)]
        slope = (seconds[-1] - seconds[-2]) / (at[-1] - at[-2]) if len(at) > 1 else 0.0
        table += [seconds[-1] + slope * n for n in range(1, rows + 1 - at[-1])]
        self._table = list(accumulate(table, max))  # sums of slopes round
        self._array = np.array(self._table)


def _never_falling(values: Sequence[float]) -> list[float]:
    """The closest never-falling sequence in least squares: neighbours out of order are averaged.

    >>> _never_falling([3.0, 1.0, 4.0])
    [2.0, 2.0, 4.0]
    """
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, n = blocks.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step ran. passes: rows of every draft pass beyond the extend. requests: that decode. drafts:
    rows that were drafts, to verify."""

    rows: int
    extended: int = 0
    passes: Sequence[int] = ()
    requests: int = 0
    drafts: int = 0


_NOTHING = {1: 1e-9}


class StepCosts:
    def __init__(
        self,
        target: Mapping[int, float],
        extend: Mapping[int, float],
        draft: Mapping[int, float],
        fixed: float,
        request: Mapping[int, float] = _NOTHING,
    ) -> None:
        """Each part: rows, or requests -> seconds; `fixed`: seconds of a step besides them."""
        self.request = CostCurve(request)
        self.target, self.extend, self.draft = CostCurve(target), CostCurve(extend), CostCurve(draft)
        if not 0.0 <= fixed < math.inf:
            raise ValueError(f"the fixed cost of a step is {fixed}; it must be seconds, 0 or more")
        self.fixed = fixed

    def step(self, work: StepWork) -> float:
        """Seconds that the step is expected to take."""
        passes = sum(self.draft(n) for n in work.passes)
        there = self.fixed + self.request(work.requests) + self.target(work.rows)
        return there + self.extend(work.extended) + passes

    def parts(self, works: Sequence[StepWork]) -> np.ndarray:
        """The same seconds [steps, 6], in parts that need not be right to the same degree (`pace`): what the
        step would take without drafts, rows of drafts, rows of prompts, the draft layer's first pass, further
        passes, and what these take for every row but their first."""
        first, draft = self.draft(1), self.draft
        n, rows, drafts, extended, passes = np.array(
            [(w.requests, w.rows, w.drafts, w.extended, len(w.passes)) for w in works]
        ).T
        plain, target = self.target.many(n), self.target.many(n + drafts)
        found = np.empty((len(works), 6))
        found[:, 0] = self.request.many(n) + plain + self.fixed
        found[:, 1] = target - plain
        found[:, 2] = self.target.many(rows) - target
        found[:, 3] = self.extend.many(extended)
        found[:, 4] = passes * first
        found[:, 5] = [sum([draft(m) - first for m in w.passes]) for w in works]
        return found
