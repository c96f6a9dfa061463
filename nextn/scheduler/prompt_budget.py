"""How much of a step prompts may take: by tokens of the budget and, beside requests that decode, by what the
step costs. Pure.

A budget's token is a row of the model's layers. Log-probabilities that are wanted of a prompt, and attention
over a long context, count as so many rows more.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from nextn.speculative.depth.cost import StepCost

# A prompt may make a step of requests that decode this many times as long: two thirds of it are then the
# prompt's. Each further prompt that waits may take as much again.
SLOWER = 3.0
LEAST = 4  # tokens of a prompt in a step: with fewer, more than half of the time goes for other things
SMOOTHING = 0.1  # weight of the latest step in the running ratio of what steps take to their cost
BOUNDS = (0.25, 4.0)  # of one step's ratio: one that was held up must not decide


class PromptBudget:
    def __init__(
        self, tokens: int, score: float = 0.0, context: float = 0.0, cost: StepCost | None = None
    ) -> None:
        """tokens: of a step. score: what the log-probability of a prompt's token costs, in rows. context:
        what each position costs that a row attends to. cost: of steps, None where it is not known."""
        self.tokens, self.score, self.context, self.cost = tokens, score, context, cost
        # What steps without prompts ([0]) and with prompts ([1]) took, in times their cost: drafts, the
        # host's work and attention make a difference.
        self._ratios = [1.0, 1.0]

    def took(self, rows: int, prompts: float, seconds: float) -> None:
        """A step of so many rows of requests that decode, and of prompts that took so much of the budget."""
        if self.cost is None or not rows:
            return
        kind = bool(prompts)
        ratio = min(max(seconds / self.cost.rows(rows, prompts), BOUNDS[0]), BOUNDS[1])
        self._ratios[kind] += SMOOTHING * (ratio - self._ratios[kind])

    def beside(self, rows: int, prompts: int) -> int:
        """What so many prompts may take beside so many rows of requests that decode: half the budget, or as
        much as the time of the step allows; at least 1."""
        most = max(1, self.tokens // 2)
        cost = self.cost
        if cost is None:
            return most
        plain, mixed = self._ratios
        limit = (1.0 + (SLOWER - 1.0) * prompts) * cost.rows(rows) * plain / mixed
        return max(1, bisect_right(range(most + 1), limit, key=lambda more: cost.rows(rows, more)) - 1)

    def affordable(self, budget: float, room: int, start: int, unscored: int | None, beside: bool) -> int:
        """How many tokens from position `start` on the budget is enough for; at least LEAST, or what there is
        room for. unscored: the first position whose log-probability is wanted. beside: other requests decode,
        so attention counts."""
        context = self.context * beside
        each = 1.0 + context * start
        if unscored is not None and unscored < start + budget / each:
            each += self.score
        # n tokens cost each * n + context * n * n / 2.
        root = math.sqrt(each * each + 2.0 * context * budget)
        return max(min(LEAST, room), int(2.0 * budget / (each + root)))

    def taken(self, start: int, tokens: int, scores: int, beside: bool) -> int:
        """What a chunk of a prompt takes of the budget."""
        attention = self.context * beside * tokens * (start + tokens / 2)
        return tokens + math.ceil(self.score * scores + attention)
