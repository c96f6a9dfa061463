"""What a step costs: seconds by what it runs, from whole steps that are timed at start-up. Pure.

    seconds = plain(requests) + context * positions read             the step without drafts
            + row * (plain(rows) - plain(requests))                  rows beyond one for each request
            + (1 + passes) * draft + draft_row * rows of these        the drafter's passes

`plain` is measured with one row for each of n requests of their own, so it contains the experts that n
independent tokens wake. Rows of one request share what they read; `row` says by how much that is cheaper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

# Bounds of `row`, and of a drafter pass as a share of the smallest step. A busy machine can measure anything.
ROW_BOUNDS, PASS_BOUNDS = (0.2, 1.5), (0.002, 1.0)


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step ran. rows: of the target. extended: rows of the drafter's first pass. passes: rows of each
    further one. requests: that decode. drafts: rows that were drafts. context: positions they read."""

    rows: int
    extended: int = 0
    passes: Sequence[int] = ()
    requests: int = 0
    drafts: int = 0
    context: int = 0


@dataclass(frozen=True, slots=True)
class StepCost:
    """plain: requests -> seconds. draft: of a pass whatever its rows, draft_row: of each of them."""

    plain: Mapping[int, float]
    row: float = 1.0
    draft: float = 0.0
    draft_row: float = 0.0
    context: float = 0.0
    _table: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_table", [])

    def rows(self, n: float) -> float:
        """Seconds of a step of n rows, one for each request: straight between the measured points."""
        at = int(n)
        while len(self._table) <= at + 1:
            self._table.append(self._interpolated(len(self._table)))
        seconds = self._table[at]
        return seconds if at == n else seconds + (n - at) * (self._table[at + 1] - seconds)

    def _interpolated(self, n: int) -> float:
        x = sorted(self.plain)
        if n <= x[0] or len(x) == 1:
            # Through one point: half of a step is there whatever the rows.
            return self.plain[x[0]] * (0.5 + 0.5 * n / x[0])
        k = min(bisect_right(x, n), len(x) - 1)
        low, high = self.plain[x[k - 1]], self.plain[x[k]]
        return low + (high - low) * (n - x[k - 1]) / (x[k] - x[k - 1])

    def base(self, work: StepWork) -> float:
        """Of the step as it would be without drafts; parts of prompts are in it."""
        n, prompt = work.requests, work.rows - work.requests - work.drafts
        return self.rows(n) + self.row * (self.rows(n + prompt) - self.rows(n)) + self.context * work.context

    def extra(self, work: StepWork) -> float:
        """What drafts, verified and made, add to that."""
        seconds = self.verify(work.rows - work.drafts, work.drafts)
        if work.extended:
            seconds += self.drafting(len(work.passes) + 1, work.extended + sum(work.passes))
        return seconds

    def verify(self, rows: float, drafts: float) -> float:
        """Of so many drafts in a step of so many other rows."""
        return self.row * (self.rows(rows + drafts) - self.rows(rows))

    def drafting(self, passes: float, rows: float) -> float:
        """Of the drafter's passes over so many rows in all."""
        return passes * self.draft + rows * self.draft_row


def fit(steps: Sequence[tuple[StepWork, float]], least_context: int = 256) -> StepCost:
    """steps: what was run, and its median seconds; some without drafts, for `plain`, and some with. Least
    squares of the relative error. A part that no step shows keeps its default."""
    still = [(w, s) for w, s in steps if not w.drafts and not w.extended]
    near = min(w.context / w.requests for w, _ in still)
    plain: dict[int, float] = {}
    most = 0.0
    for w, s in sorted(still, key=lambda each: each[0].requests):
        if w.context / w.requests < near + least_context:
            plain[w.requests] = most = max(most, s)  # never falling
    cost = StepCost(plain)
    far = [(w, s) for w, s in still if w.context / w.requests >= near + least_context]
    per = [(s - plain[w.requests]) / (w.context - near * w.requests) for w, s in far if w.requests in plain]
    context = max(0.0, min(per, default=0.0))
    rows, right, base = [], [], min(plain.values())
    for w, s in steps:
        if w.extended and w.requests in plain:
            plainly = plain[w.requests]
            verified = cost.rows(w.rows) - cost.rows(w.rows - w.drafts)
            parts = (verified, 1.0 + len(w.passes), float(w.extended + sum(w.passes)))
            rows.append([p / plainly for p in parts])
            right.append((s - plainly) / plainly)
    if not rows:
        return StepCost(plain, draft=0.1 * base, context=context)
    scale = np.abs(np.array(rows)).max(axis=0) + 1e-12
    a = np.vstack([np.array(rows) / scale, 1e-3 * np.eye(3)])  # a little towards 0 where nothing tells them apart
    row, draft, draft_row = np.linalg.lstsq(a, np.array([*right, 0.0, 0.0, 0.0]), rcond=None)[0] / scale
    least, largest = PASS_BOUNDS[0] * base, PASS_BOUNDS[1] * base
    return StepCost(
        plain,
        row=float(np.clip(row, *ROW_BOUNDS)),
        draft=float(np.clip(draft, least, largest)),
        draft_row=float(np.clip(draft_row, 0.0, largest)),
        context=context,
    )
