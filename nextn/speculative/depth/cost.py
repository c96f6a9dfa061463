"""The cost of a step in seconds, from what it runs, fitted to whole steps timed at start-up. Without I/O.

    seconds = fixed + request * requests + row * rows + expert * woken(rows)
            + context * positions read + attention * positions, for each row that attends to them
            + drafter, if it runs, + a_pass * its passes + pass_row * rows of these

woken(n): expected number of distinct experts, of E, that n tokens choose, K each: E (1 - (1 - K/E)^n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nextn.speculative.work import StepWork

Factors = Mapping[int, list[float]]  # log2 of the batch size -> factors from trials


@dataclass(frozen=True, slots=True)
class StepCost:
    """experts: number in a layer, and number chosen by a token. drafted: cost of a draft's row relative to
    another row. prompt_row: seconds of the drafter for a row of a prompt."""

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
        """Seconds of a step of n requests with one row each, and of `more` further rows."""
        count, chosen = self.experts
        woken: float = count * (1.0 - (1.0 - chosen / count) ** (n + more))
        return self.fixed + self.request * n + self.row * (n + more) + self.expert * woken

    def base(self, work: StepWork) -> float:
        """Seconds of the step without its drafts; parts of prompts are included."""
        more = work.rows - work.drafts - work.requests
        return self.rows(work.requests, more) + (self.context + self.attention) * work.context

    def extra(self, work: StepWork) -> float:
        """Seconds that drafts add, for verifying and making them."""
        drafting = self.drafting(len(work.passes) + 1, work.extended + sum(work.passes)) * (work.extended > 0)
        attention = self.drafted * self.attention * work.context * work.drafts / max(1, work.requests)
        return self.verify(work.rows - work.drafts, work.drafts) + attention + drafting

    def verify(self, rows: float, drafts: float) -> float:
        """Seconds for verifying `drafts` drafts in a step with `rows` other rows."""
        return self.drafted * (self.rows(rows, drafts) - self.rows(rows))

    def drafting(self, passes: float, rows: float) -> float:
        """Seconds of the drafter's passes, over `rows` rows in total."""
        return self.drafter + passes * self.a_pass + rows * self.pass_row

    def at(self, positions: float) -> StepCost:
        """The cost of steps whose requests have `positions` positions each."""
        row, request = self.attention * positions, self.context * positions
        return replace(self, row=self.row + row, request=self.request + request, context=0.0, attention=0.0)

    def times(self, factor: float) -> StepCost:
        """The cost if drafts are `factor` times as expensive."""
        names = ("drafted", "drafter", "a_pass", "pass_row")
        return replace(self, **{name: factor * getattr(self, name) for name in names})


def fit(steps: Sequence[tuple[StepWork, float]], experts: tuple[int, int]) -> StepCost:
    """steps: what was run and its seconds, without drafts and with. Least squares of the relative errors.
    Terms are at least 0: the most negative term is left out until there is none."""
    nothing = StepCost(0.0, 0.0, experts=experts)
    left = ["fixed", "row", "expert", "drafter", "a_pass", "pass_row"]
    # A term that the steps cannot separate from the others is left out, and they include it.
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
    # If times contradict each other, the fitted cost of a step may be 0.
    return cost if cost.rows(1) > 0.0 else replace(cost, fixed=min(s for _, s in steps))
