"""How much of a step prompts may take: by tokens of the budget and, where others wait for the step's end, by
what it costs. Pure.

A budget's token is a row of the model's layers. Log-probabilities that are wanted of a prompt, and attention
over a long context, count as so many rows more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from nextn.scheduler.plan import SpanPlan
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.work import StepWork

# Prompts may make a step of requests that decode this many times as long, two thirds of it are then theirs;
# or longer, where more prompts wait than requests decode: then each has as much of the time as any other.
SLOWER = 3.0
# So many times where log-probabilities of a prompt are wanted: they are for evaluation, nobody waits for a
# first token. Beside them a whole request, its own prompt included, then takes less than twice its time.
SCORED = 1.5
# After a request decoded beside prompts, others like it are expected for so many steps that prompts have part
# in. Steps of prompts alone are short then, so that nobody waits for the end of one for long.
WHILE = 64
SMOOTHING = 0.1  # weight of the latest step in the running ratio of what steps take to their cost
BOUNDS = (0.25, 4.0)  # of one step's ratio: one that was held up must not decide
EVERY = 8  # of steps without prompts, one after another, one in so many is looked at


class PromptBudget:
    def __init__(
        self, tokens: int, score: float = 0.0, context: float = 0.0, cost: StepCost | None = None
    ) -> None:
        """tokens: of a step. score: what the log-probability of a prompt's token costs, in rows. context:
        what each position costs that a row attends to. cost: of steps, None where it is not known."""
        self.tokens, self.score, self.context, self.cost = tokens, score, context, cost
        # What is left for prompts while requests decode, and what prompts alone get where others are
        # expected. A prompt with no more tokens left is short: it need not wait for longer ones.
        self.eighth = tokens // 8
        # What steps without prompts ([0]) and with prompts ([1]) took, in times their cost: the host's work
        # and attention make a difference.
        self._ratios = [1.0, 1.0]
        self._last = StepWork(0)
        self._others = 0  # steps for which others are expected to wait
        self._plain = 0  # steps since the last one with prompts

    def took(self, spans: Sequence[SpanPlan], work: StepWork, seconds: float) -> None:
        """A step has run."""
        requests, prompts = work.requests, 0
        if work.rows > requests + work.drafts:  # a prompt's last part chooses, and is no request that decodes
            parts = [s for s in spans if s.known > 1 or not s.chooses]
            requests -= sum(s.chooses for s in parts)
            prompts = sum(self.taken(s.start, s.known, len(s.scores)) for s in parts)
        self.note(requests, prompts, work, seconds)

    def note(self, requests: int, prompts: float, work: StepWork, seconds: float) -> None:
        """A step of so many requests that decode, and of prompts that took so much of the budget."""
        if self.cost is None or not requests:
            return
        self._last = work
        if prompts:
            self._plain = 0
        else:
            self._plain += 1
            if self._plain % EVERY != 1:
                return
        expected = self.cost.rows(requests, prompts) + self.cost.extra(work)
        ratio = min(max(seconds / expected, BOUNDS[0]), BOUNDS[1])
        kind = bool(prompts)
        self._ratios[kind] += SMOOTHING * (ratio - self._ratios[kind])

    def share(self, requests: int, prompts: int, scored: bool = False) -> int:
        """What so many prompts may take of the next step, beside so many requests that decode: half of the
        budget, or as much as the time of the step allows; at least 1. Where none decode, all of it, or an
        eighth if some are expected. scored: log-probabilities of one of the prompts are wanted. To be called
        for every step that prompts may have part in."""
        self._others = WHILE if requests else max(0, self._others - 1)
        if not requests:
            return max(1, self.eighth // (1 + scored)) if self._others else self.tokens
        half = max(1, self.tokens // 2)
        if self.cost is None:
            return half
        cost, drafts = self.cost, self.cost.extra(self._last)  # the next step has drafts like the last one's
        plain, mixed = self._ratios
        slower = SCORED if scored else max(SLOWER, 1.0 + prompts / requests)
        limit = slower * (cost.rows(requests) + drafts) * plain / mixed - drafts
        return max(1, bisect_right(range(half + 1), limit, key=lambda m: cost.rows(requests, m)) - 1)

    def affordable(self, budget: float, start: int, unscored: int | None) -> int:
        """How many tokens from position `start` on the budget is enough for. unscored: the first position
        whose log-probability is wanted."""
        context = self.context * (self._others > 0)
        each = 1.0 + context * start
        if unscored is not None and unscored < start + budget / each:
            each += self.score
        # n tokens cost each * n + context * n * n / 2.
        root = math.sqrt(each * each + 2.0 * context * budget)
        return int(2.0 * budget / (each + root))

    def taken(self, start: int, tokens: int, scores: int) -> int:
        """What a chunk of a prompt takes of the budget. Attention counts where others wait."""
        attention = self.context * (self._others > 0) * tokens * (start + tokens / 2)
        return tokens + math.ceil(self.score * scores + attention)
