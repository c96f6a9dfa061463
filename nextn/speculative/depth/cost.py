"""What a step costs: seconds by what it runs, from whole steps that are timed at start-up. Pure.

    seconds = fixed + request * requests + row * rows + expert * woken(rows)
            + context * positions read + attention * positions, for each row that attends to them
            + drafter, where it runs, + a_pass * its passes + pass_row * rows of these

woken(n): distinct experts of E that n tokens wake when each chooses K alone, E (1 - (1 - K/E)^n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nextn.speculative.work import StepWork


@dataclass(frozen=True, slots=True)
class StepCost:
    """experts: of a layer, and chosen by a token. drafted: cost of a draft's row over another's. prompt_row:
    what the drafter takes for a row of a prompt."""

    fixed: float
    row: float
    expert: float = 0.0
    experts: tuple[int, int] = (1, 1)
    context: float = 0.0
    drafted: float = 1.0
    drafter: float = 0.0
    a_pass: float = 0.0
    pass_row: float = 0.0
    request: float = 0.0
    attention: float = 0.0
    prompt_row: float = 0.0

    def rows(self, n: float, more: float = 0.0) -> float:
        """Seconds of a step of n requests with a row each, and so many more rows of any of them."""
        count, chosen = self.experts
        woken: float = count * (1.0 - (1.0 - chosen / count) ** (n + more))
        return self.fixed + self.request * n + self.row * (n + more) + self.expert * woken

    def base(self, work: StepWork) -> float:
        """Of the step as it would be without drafts; parts of prompts are in it."""
        more = work.rows - work.drafts - work.requests
        return self.rows(work.requests, more) + (self.context + self.attention) * work.context

    def extra(self, work: StepWork) -> float:
        """What drafts, verified and made, add to that."""
        drafting = self.drafting(len(work.passes) + 1, work.extended + sum(work.passes)) * (work.extended > 0)
        attention = self.drafted * self.attention * work.context * work.drafts / max(1, work.requests)
        return self.verify(work.rows - work.drafts, work.drafts) + attention + drafting

    def verify(self, rows: float, drafts: float) -> float:
        """Of so many drafts in a step of so many other rows."""
        return self.drafted * (self.rows(rows, drafts) - self.rows(rows))

    def drafting(self, passes: float, rows: float) -> float:
        """Of the drafter's passes, over so many rows in all."""
        return self.drafter + passes * self.a_pass + rows * self.pass_row

    def at(self, positions: float) -> StepCost:
        """Of steps whose requests have so many positions each."""
        row, request = self.attention * positions, self.context * positions
        return replace(self, row=self.row + row, request=self.request + request, context=0.0, attention=0.0)

    def times(self, factor: float) -> StepCost:
        """Drafts cost so much more."""
        names = ("drafted", "drafter", "a_pass", "pass_row")
        return replace(self, **{name: factor * getattr(self, name) for name in names})


def fit(steps: Sequence[tuple[StepWork, float]], experts: tuple[int, int]) -> StepCost:
    """steps: what was run and its seconds, without drafts and with. Least squares of the relative errors,
    nothing below 0: what would be furthest below is left out until nothing is."""
    nothing = StepCost(0.0, 0.0, experts=experts)
    left = ["fixed", "row", "expert", "drafter", "a_pass", "pass_row"]
    # What nothing tells apart from the others counts as theirs.
    left += ["request"] * (len({w.requests for w, _ in steps}) > 1 and any(w.drafts for w, _ in steps))
    left += ["context"] * (len({w.context / w.requests for w, _ in steps}) > 1)
    left += ["attention"] * (len({w.context / w.requests for w, _ in steps if w.drafts}) > 1)
    while left:
        units = [replace(nothing, **dict[str, Any]({name: 1.0})) for name in left]
        parts = np.array([[(u.base(w) + u.extra(w)) / s for u in units] for w, s in steps])
        scale = np.linalg.norm(parts, axis=0) + 1e-30
        x = np.linalg.lstsq(parts / scale, np.ones(len(steps)), rcond=None)[0]
        if x.min() >= 0.0:
            break
        left.pop(int(x.argmin()))
    cost = replace(nothing, **dict[str, Any](zip(left, (x / scale).tolist(), strict=False)))
    # Times that contradict each other may leave a step nothing to cost.
    return cost if cost.rows(1) > 0.0 else replace(cost, fixed=min(s for _, s in steps))
