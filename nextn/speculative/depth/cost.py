"""What a step costs: seconds by what it runs, from whole steps that are timed at start-up. Pure.

    seconds = fixed + row * rows + expert * woken(rows) + context * positions read
            + drafted * (what the rows of drafts add to that) + a_pass * passes + pass_row * rows of these

woken(n): distinct experts of E that n tokens wake when each chooses K alone, E (1 - (1 - K/E)^n). Drafts of
one request choose alike and share what they read: `drafted` says how much cheaper their rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nextn.speculative.work import StepWork


@dataclass(frozen=True, slots=True)
class StepCost:
    """experts: of a layer, and chosen by a token."""

    fixed: float
    row: float
    expert: float = 0.0
    experts: tuple[int, int] = (1, 1)
    context: float = 0.0
    drafted: float = 1.0
    a_pass: float = 0.0
    pass_row: float = 0.0

    def rows(self, n: float) -> float:
        """Seconds of a step of n rows, each of a request of its own."""
        count, chosen = self.experts
        woken: float = count * (1.0 - (1.0 - chosen / count) ** n)
        return self.fixed + self.row * n + self.expert * woken

    def base(self, work: StepWork) -> float:
        """Of the step as it would be without drafts; parts of prompts are in it."""
        return self.rows(work.rows - work.drafts) + self.context * work.context

    def extra(self, work: StepWork) -> float:
        """What drafts, verified and made, add to that."""
        drafting = self.drafting(len(work.passes) + 1, work.extended + sum(work.passes)) * (work.extended > 0)
        return self.verify(work.rows - work.drafts, work.drafts) + drafting

    def verify(self, rows: float, drafts: float) -> float:
        """Of so many drafts in a step of so many other rows."""
        return self.drafted * (self.rows(rows + drafts) - self.rows(rows))

    def drafting(self, passes: float, rows: float) -> float:
        """Of the drafter's passes, over so many rows in all."""
        return passes * self.a_pass + rows * self.pass_row


def fit(steps: Sequence[tuple[StepWork, float]], experts: tuple[int, int]) -> StepCost:
    """steps: what was run and its seconds, without drafts and with. Least squares of the relative errors."""
    plain = {w: s for w, s in steps if not w.extended and not w.drafts}
    least = min(w.context / w.requests for w in plain)
    near = {w.requests: s for w, s in plain.items() if w.context <= least * w.requests}
    units = [StepCost(i == 0, i == 1, i == 2, experts) for i in range(3)]
    parts = _solve([[u.rows(n) / s for u in units] for n, s in near.items()], [1.0] * len(near))
    cost = StepCost(parts[0], parts[1], parts[2], experts)
    far = [(s - cost.rows(w.rows)) / w.context for w, s in plain.items() if w.context > least * w.requests]
    rows, more = [], []
    for w, s in steps:
        if w not in plain and w.requests in near:  # beside a step of the same requests without drafts
            passes = (len(w.passes) + 1) * (w.extended > 0)  # n-grams take none
            verified = cost.verify(w.requests, w.drafts)
            rows.append([verified / s, passes / s, (w.extended + sum(w.passes)) / s])
            more.append(1.0 - near[w.requests] / s)
    drafted, a_pass, pass_row = _solve(rows, more)
    context = max(0.0, *far, 0.0)
    return replace(cost, context=context, drafted=drafted, a_pass=a_pass, pass_row=pass_row)


def _solve(rows: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Least squares in three unknowns, none below 0: the most negative one is left out until none is."""
    found, left = [0.0] * 3, list(range(3))
    while left and rows:
        x = np.linalg.lstsq(np.array(rows)[:, left], np.array(right), rcond=None)[0].tolist()
        if min(x) >= 0.0:
            for i, value in zip(left, x, strict=True):
                found[i] = value
            break
        left.pop(x.index(min(x)))
    return found
