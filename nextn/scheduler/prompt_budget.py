"""How many tokens of a step prompts may use: limited by the token budget and, if other requests wait for the
end of the step, by its predicted time.

A token of the budget is one row of the model's layers. Requested log-probabilities of a prompt, and attention
over a long context, count as additional rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from nextn.scheduler.plan import SpanPlan
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.work import StepWork

# If requests decode, prompts may make a step this many times as long; two thirds of it are then for prompts.
# It may be longer if more prompts wait than requests decode: then each has the same part of the time.
SLOWER = 3.0
# The same if log-probabilities of a prompt are wanted. They are for evaluation: no user waits for a first
# token. A request beside them, with its own prompt, then takes less than twice its usual time.
SCORED = 1.5
# After a request decoded beside prompts, others are expected during this number of steps with prompts. During
# these, steps with prompts only are short, so that a new request does not wait long.
WHILE = 64
SMOOTHING = 0.1  # weight of the latest step in the moving average of measured time over predicted time
BOUNDS = (0.25, 4.0)  # limits for one step's ratio, so that one interrupted step does not decide
EVERY = 8  # of consecutive steps without prompts, one in this number is measured


class PromptBudget:
    def __init__(
        self, tokens: int, score: float = 0.0, context: float = 0.0, cost: StepCost | None = None
    ) -> None:
        """tokens: budget of a step. score: cost of a prompt token's log-probability, in rows. context: cost
        of each position that a row attends to, in rows. cost: predicts step times; None: unknown."""
        self.tokens, self.score, self.context, self.cost = tokens, score, context, cost
        # Reserved for prompts while requests decode, and the budget of steps with prompts only while other
        # requests are expected. A prompt with at most this number of tokens left is short.
        self.eighth = tokens // 8
        # Measured time over predicted time, of steps without prompts ([0]) and with prompts ([1]).
        self._ratios = [1.0, 1.0]
        self._last = StepWork(0)
        self._others = 0  # number of next steps in which other requests are expected
        self._plain = 0  # steps since the last one with prompts

    def took(self, spans: Sequence[SpanPlan], work: StepWork, seconds: float) -> None:
        """Called after a step."""
        requests, prompts = work.requests, 0
        if work.rows > requests + work.drafts:  # a prompt's last chunk chooses, but does not decode
            parts = [s for s in spans if s.known > 1 or not s.chooses]
            requests -= sum(s.chooses for s in parts)
            prompts = sum(self.taken(s.start, s.known, len(s.scores)) for s in parts)
        self.note(requests, prompts, work, seconds)

    def note(self, requests: int, prompts: float, work: StepWork, seconds: float) -> None:
        """Called after a step. requests: number that decoded. prompts: budget that prompts used."""
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
        """The budget for `prompts` prompts in the next step, beside `requests` decoding requests: half of the
        whole budget, or less if the step would take too long; at least 1. If no request decodes: all of it,
        or an eighth if others are expected. scored: log-probabilities of one of the prompts are wanted. Call
        it for every step that may contain prompts."""
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
        """How many tokens from position `start` on the budget allows. unscored: the first position whose
        log-probability is wanted."""
        context = self.context * (self._others > 0)
        each = 1.0 + context * start
        if unscored is not None and unscored < start + budget / each:
            each += self.score
        # n tokens cost each * n + context * n * n / 2.
        root = math.sqrt(each * each + 2.0 * context * budget)
        return int(2.0 * budget / (each + root))

    def taken(self, start: int, tokens: int, scores: int) -> int:
        """The part of the budget that a prompt chunk uses. Attention is included if other requests wait."""
        attention = self.context * (self._others > 0) * tokens * (start + tokens / 2)
        return tokens + math.ceil(self.score * scores + attention)
