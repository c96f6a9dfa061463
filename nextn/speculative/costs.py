"""What a step costs: seconds by number of rows, measured at start-up, refined by every step that runs.

A step of the engine has three parts whose time depends on how many rows they run over, and one that does not:

    target  the model over every row of the step: roots, drafts to verify, pieces of prompts
    extend  the draft layer over newly true rows, and the first draft of every request that drafts
    draft   one further draft for each of n requests (every depth beyond the first is one such pass)
    fixed   planning, sampling's bookkeeping, messages

Pure, and without a clock: whoever runs the step tells how long its parts took.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

# Row counts worth measuring at start-up; between them cost is a straight line.
KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# Share of an error that moves the whole curve, and the share that moves the knots beside it. Most causes (a
# longer context, a slower clock) concern all row counts alike, so unmeasured ones keep their shape.
_SCALE_GAIN, _KNOT_GAIN = 0.06, 0.03
# Small row counts also learn for themselves, as kernels work in tiles: cost goes up in stairs between knots.
_OWN_GAIN, _OWN_ROWS = 0.05, 96
_FIRST = 6.0  # the first observation of a knot moves it by one part in so many, later ones by less
# An error is counted up to so many times the usual one: a step that lost its core to a neighbour says little.
_HUBER = 1.5
_SPREAD_GAIN, _LEAST_SPREAD = 0.05, 0.01
_SETTLED = 0.01  # a change of this size makes the table worth computing anew


class CostCurve:
    """Seconds as a function of rows: never falling, straight between its knots and beyond the last."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """points: rows -> seconds. ValueError unless there is one and all are positive."""
        if not points or any(r < 1 or not (0.0 < s < math.inf) for r, s in points.items()):
            raise ValueError(f"a cost needs points of rows >= 1 and seconds > 0, got {dict(points)}")
        self.rows = sorted(points)
        self._log = [math.log(s) for s in _never_falling([points[r] for r in self.rows])]
        self._gain = [1.0 / _FIRST] * len(self.rows)
        self._scale = 0.0
        self._own: dict[int, float] = {}
        self._spread = 0.05  # usual size of an error, relative
        self._moved = 0.0  # since the table was computed
        self._table: list[float] = [0.0]
        self._filled = 8  # rows that the table has when it is whole

    def __call__(self, rows: int) -> float:
        return self.upto(rows)[rows]

    def upto(self, rows: int) -> list[float]:
        """The table of seconds by number of rows, 0.0 for none, at least up to `rows`. Not to be written
        to."""
        if rows >= len(self._table):
            self._filled = max(self._filled, rows + rows // 2)
            self._fill(self._filled)
        return self._table

    def observe(self, rows: int, seconds: float) -> None:
        """A part that ran over `rows` took so long."""
        if rows < 1 or seconds <= 0.0:
            return
        error = math.log(seconds / self(rows))
        most = _HUBER * self._spread
        step = min(most, max(-most, error))
        self._spread += _SPREAD_GAIN * (min(abs(error), 4.0 * self._spread) - self._spread)
        self._spread = max(self._spread, _LEAST_SPREAD)
        self._scale += _SCALE_GAIN * step
        k = bisect_right(self.rows, rows) - 1
        if k < 0 or k == len(self.rows) - 1:
            self._move(max(k, 0), step)
        else:
            share = (rows - self.rows[k]) / (self.rows[k + 1] - self.rows[k])
            self._move(k, (1.0 - share) * step)
            if share:
                self._move(k + 1, share * step)
        if rows <= _OWN_ROWS:
            self._own[rows] = self._own.get(rows, 0.0) + _OWN_GAIN * step
        self._moved += abs(step) * (_SCALE_GAIN + _OWN_GAIN)
        if self._moved > _SETTLED:
            self._moved = 0.0
            self._table = [0.0]

    def _move(self, knot: int, step: float) -> None:
        gain = self._gain[knot]
        self._log[knot] += gain * step
        self._gain[knot] = max(_KNOT_GAIN, gain / (1.0 + gain))
        self._moved += gain * abs(step)

    def _fill(self, rows: int) -> None:
        at = self.rows
        seconds = [math.exp(v + self._scale) for v in self._log]
        table = [0.0] + [seconds[0]] * min(at[0], rows)
        for k in range(1, len(at)):
            if len(table) > rows:
                break
            slope = (seconds[k] - seconds[k - 1]) / (at[k] - at[k - 1])
            table += [seconds[k - 1] + slope * n for n in range(1, at[k] - at[k - 1] + 1)]
        slope = (seconds[-1] - seconds[-2]) / (at[-1] - at[-2]) if len(at) > 1 else 0.0
        table += [seconds[-1] + slope * n for n in range(1, rows + 1 - at[-1])]
        for n, own in self._own.items():
            if n < len(table):
                table[n] *= math.exp(own)
        self._table = list(accumulate(table, max))  # what a row count has learnt holds for larger ones


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
    """What a step ran. passes: rows of every draft pass beyond the extend."""

    rows: int
    extended: int = 0
    passes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step's parts and of the whole of it."""

    target: float
    extend: float
    draft: float
    whole: float

    def within(self, whole: float) -> StepTimes:
        """The same parts of a whole that has more in it: what happens between two steps."""
        return StepTimes(self.target, self.extend, self.draft, whole)


class StepCosts:
    def __init__(
        self,
        target: Mapping[int, float],
        extend: Mapping[int, float],
        draft: Mapping[int, float],
        fixed: float,
    ) -> None:
        """Each part: rows -> seconds, as probed at start-up; `fixed`: seconds of a step besides them."""
        self.target, self.extend, self.draft = CostCurve(target), CostCurve(extend), CostCurve(draft)
        if not 0.0 <= fixed < math.inf:
            raise ValueError(f"the fixed cost of a step is {fixed}; it must be seconds, 0 or more")
        self.fixed = fixed

    def step(self, work: StepWork) -> float:
        """Seconds that the step is expected to take."""
        passes = sum(self.draft(n) for n in work.passes)
        return self.fixed + self.target(work.rows) + self.extend(work.extended) + passes

    def observe(self, work: StepWork, times: StepTimes) -> None:
        self.target.observe(work.rows, times.target)
        self.extend.observe(work.extended, times.extend)
        if work.passes:
            # The passes of a step are timed together; each is given its share as expected.
            ratio = times.draft / sum(self.draft(n) for n in work.passes)
            for n in work.passes:
                self.draft.observe(n, ratio * self.draft(n))
        rest = max(0.0, times.whole - times.target - times.extend - times.draft)
        # Never more than half as much again at once: see _HUBER.
        self.fixed += _SCALE_GAIN * (min(rest, 1.5 * self.fixed + 1e-6) - self.fixed)
