"""What a step costs: seconds by what it runs, from whole steps that are timed at start-up. Pure.

    seconds = fixed + row * rows + expert * woken(rows) + context * positions read
            + drafted * (what drafts add to that)  +  pass_ * passes  +  pass_row * rows of these

woken(n): distinct experts of E that n tokens wake which choose K each independently, E (1 - (1 - K/E)^n).
Drafts of one request choose less independently, and share what they read: `drafted` says by how much their
rows are cheaper than rows of other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np

NEAR = 256  # positions a request reads, up to which steps say nothing of `context`


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
    fixed: float
    row: float
    expert: float = 0.0
    experts: tuple[int, int] = (1, 1)  # of a layer, and chosen by a token
    context: float = 0.0
    drafted: float = 1.0
    pass_: float = 0.0
    pass_row: float = 0.0

    def rows(self, n: float) -> float:
        """Seconds of a step of n rows, one for each request."""
        count, chosen = self.experts
        return self.fixed + self.row * n + self.expert * count * (1.0 - (1.0 - chosen / count) ** n)

    def base(self, work: StepWork) -> float:
        """Of the step as it would be without drafts; parts of prompts are in it."""
        return self.rows(work.rows - work.drafts) + self.context * work.context

    def extra(self, work: StepWork) -> float:
        """What drafts, verified and made, add to that."""
        seconds = self.verify(work.rows - work.drafts, work.drafts)
        if work.extended:
            seconds += self.drafting(len(work.passes) + 1, work.extended + sum(work.passes))
        return seconds

    def verify(self, rows: float, drafts: float) -> float:
        """Of so many drafts in a step of so many other rows."""
        return self.drafted * (self.rows(rows + drafts) - self.rows(rows))

    def drafting(self, passes: float, rows: float) -> float:
        """Of the drafter's passes over so many rows in all."""
        return passes * self.pass_ + rows * self.pass_row


def fit(steps: Sequence[tuple[StepWork, float]], experts: tuple[int, int]) -> StepCost:
    """steps: what was run and its seconds, without drafts and with. Least squares of the relative errors."""
    still = [(w, s) for w, s in steps if not w.drafts and not w.extended]
    near = [(w, s) for w, s in still if w.context <= NEAR * w.requests]
    unit = [StepCost(*(i == k for i in range(3)), experts) for k in range(3)]
    parts = [[part.rows(w.rows) / s for part in unit] for w, s in near]
    fixed, row, expert = _least_squares(parts, [1.0] * len(near))
    plain = StepCost(fixed, row, expert, experts)
    far = [(s - plain.rows(w.rows)) / w.context for w, s in still if w.context > NEAR * w.requests]
    # A step without drafts of the same requests is at hand for every one with drafts.
    beside = {w.requests: s for w, s in near}
    drafting = [(w, s) for w, s in steps if w.extended and w.requests in beside]
    parts = [
        [p / s for p in (plain.verify(w.requests, w.drafts), len(w.passes) + 1, w.extended + sum(w.passes))]
        for w, s in drafting
    ]
    more = _least_squares(parts, [(s - beside[w.requests]) / s for w, s in drafting])
    return StepCost(fixed, row, expert, experts, max(0.0, min(far, default=0.0)), *more)


def _least_squares(rows: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x >= 0 for which rows @ x is closest to `right`: of few columns, the best of all subsets."""
    if not rows:
        return [0.0, 0.0, 0.0]
    a, b = np.array(rows), np.array(right)
    count = a.shape[1]
    best, least = np.zeros(count), float(b @ b)
    for size in range(1, count + 1):
        for columns in combinations(range(count), size):
            x = np.linalg.lstsq(a[:, columns], b, rcond=None)[0]
            rest = a[:, columns] @ x - b
            if (x >= 0.0).all() and float(rest @ rest) < least:
                best, least = np.zeros(count), float(rest @ rest)
                best[list(columns)] = x
    found: list[float] = best.tolist()
    return found


def to_json(cost: StepCost) -> dict[str, object]:
    return asdict(cost)
