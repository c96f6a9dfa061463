"""The draft-length controller: whether requests draft, and when a chain ends. Pure and deterministic.

Drafts are made where

    tokens a step with drafts / its seconds   >   tokens a step without / its seconds

by three things: what steps cost (`cost`), what drafts bring (`worth`), and, for each batch size, the factor by
which drafts cost more or less than `cost` says. The factor is learnt from trials: a few steps of the other
kind, with or without drafts, between steps of the usual kind. A neighbour on the machine slows both, so only
the ratio of adjacent steps counts. A trial is made where it could change the decision, and is paid from 1 % of
the time. What is decided changes no text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

from nextn.draft import Draft, DraftingState
from nextn.gate import Gate
from nextn.speculative.depth.cost import StepCost, StepWork
from nextn.speculative.depth.worth import Worth

TRIAL_SHARE = 0.01  # of the time, the most that trials may cost
FIRST_PURSE = 0.02  # seconds that they may cost before that has come together: 1 % of two seconds
MOST_PURSE = 64.0  # steps' time that may be saved up
TRIAL_SECONDS, FEWEST, MOST = 0.01, 4, 16  # a trial takes so long, within so many steps
PLAN_SECONDS = 0.1  # between two plans; one takes 0.3 ms
MARGIN = 0.01  # by which the other kind must be better
HOPE = 2.0  # standard deviations by which it may be better than it seems and be tried
# Standard deviations: of a factor at first, of one taken from another batch size, of what a second adds to it
# and to the logarithm of the tokens that drafts bring while none are made.
UNKNOWN, NEIGHBOUR, DRIFT = 0.5, 0.2, 0.01
FACTOR_BOUNDS = (0.1, 8.0)
ASSUMED, REMEMBERED = 50, 2000  # drafts, by which what they bring is corrected
EXPLORE = 200  # steps, one of which keeps every guess: what is never verified is never seen to hold


class _Factor:
    """Kalman filter of one number."""

    def __init__(self, mean: float = 1.0, deviation: float = UNKNOWN) -> None:
        self.mean, self.variance = mean, deviation**2

    def observe(self, value: float, variance: float) -> None:
        gain = self.variance / (self.variance + variance)
        low, high = FACTOR_BOUNDS
        self.mean = min(high, max(low, self.mean + gain * (value - self.mean)))
        self.variance *= 1.0 - gain


class _Expected:
    """By how much more came than was expected. Old observations fade."""

    def __init__(self) -> None:
        self.came = self.expected = 0.0
        self.count = 0

    def add(self, came: float, expected: float) -> None:
        self.came += came
        self.expected += expected
        self.count += 1
        if self.count == REMEMBERED:
            self.came, self.expected, self.count = self.came / 2, self.expected / 2, self.count // 2

    def ratio(self) -> float:
        """As if as much as expected had come `ASSUMED` times before."""
        if not self.expected:
            return 1.0
        assumed = ASSUMED * self.expected / self.count
        return (self.came + assumed) / (self.expected + assumed)


class DepthController:
    """drafting: whether requests that ask for no depth draft in the next step; gate, num_steps: how deep."""

    def __init__(self, cost: StepCost, worth: Worth, factors: Mapping[int, tuple[float, float]] = {}) -> None:  # noqa: B006
        """factors: of an earlier run, by batch class: mean and standard deviation."""
        self.cost, self.worth = cost, worth
        self._factors = {size: _Factor(*f) for size, f in factors.items()}
        self.drafting = self._usual = True  # now, and but for a trial
        self.gain = 1.0  # tokens per second with drafts over without, predicted
        self.state = DraftingState(True, 0, 1.0, "no request has decoded yet")
        self._requests = 0  # that the last plan was for
        self._log: deque[tuple[bool, float, float, float]] = deque(maxlen=4 * MOST)
        self._trial: list[int] = []  # steps still to be run of a trial, and after it
        self._skip = False  # the step is the first of its kind: it verifies what the one before made, or not
        self._since, self._steps, self._step = 0.0, 0, 0.0
        self._purse, self._blind = FIRST_PURSE, 0.0
        # Of steps with drafts: what they brought and were expected to, tokens and seconds by `cost`.
        self._tokens, self._extra = _Expected(), _Expected()
        self._plan(1)

    # --- every step -------------------------------------------------------------------------

    @property
    def gate(self) -> Gate | None:
        gate = self._setting.gate
        return gate._replace(keep=0.0) if gate and self._steps % EXPLORE == 0 else gate

    @property
    def num_steps(self) -> int:
        return self._setting.num_steps

    def note(self, draft: Draft, accepted: int) -> None:
        self.worth.note(draft, accepted)
        self._tokens.add(accepted, self._setting.tokens - 1.0)

    def stepped(self, work: StepWork, seconds: float | None, owed: Callable[[], int]) -> None:
        """A step has run. seconds: from the end of the one before; None: the engine was idle in between.
        owed: rows that the drafter has to catch up with before requests draft again."""
        n = work.requests
        if seconds is None or not n:
            self._log.clear()
            self._end_trial()
        else:
            self._since += seconds
            self._step += 0.1 * (seconds - self._step)
            self._purse = min(self._purse + TRIAL_SHARE * seconds, max(FIRST_PURSE, MOST_PURSE * self._step))
            self._steps += 1
            extra = self.cost.extra(work)
            # Long prompts, and what the drafter catches up with, are no steps like others.
            if not self._skip and work.rows <= 2 * (n + work.drafts) and work.extended <= 2 * (n + work.drafts):
                self._log.append((self.drafting, seconds, self.cost.base(work), extra))
                if self.drafting and work.extended:
                    self._extra.add(extra, self._setting.extra / self._factor(self._requests).mean)
            self._skip = False
            if self._trial:
                self._go_on_trying()
        if n and (n != self._requests and _size(n) != _size(self._requests)):
            self._log.clear()
            self._end_trial()
            self._plan(n, owed())
        elif n and not self._trial and self._since >= PLAN_SECONDS:
            self._plan(n, owed())

    # --- trials -----------------------------------------------------------------------------

    def _begin_trial(self, length: int) -> None:
        self._trial = [length + 1, length + 1]  # the first step of each kind is skipped
        self._switch(not self._usual)

    def _go_on_trying(self) -> None:
        self._trial[0] -= 1
        if self._trial[0] == 0:
            self._trial.pop(0)
            if self._trial:
                self._switch(self._usual)
            else:
                self._learn()

    def _end_trial(self) -> None:
        self._trial = []
        self._switch(self._usual)

    def _switch(self, drafting: bool) -> None:
        self._skip |= drafting != self.drafting
        self.drafting = drafting

    def _learn(self) -> None:
        """Of the logged steps: a step without drafts takes `level` times what `cost` says, and one with drafts
        that and factor x extra."""
        plain = [s / b for drafting, s, b, _ in self._log if not drafting]
        drafted = [(s, b, e) for drafting, s, b, e in self._log if drafting and e > 0.0]
        if len(plain) < FEWEST or len(drafted) < FEWEST:
            return
        level = median(plain)
        found = median((s / level - b) / e for s, b, e in drafted)
        noise = max(0.02, 1.5 * median(abs(p / level - 1.0) for p in plain))
        share = median(e / b for _, b, e in drafted)
        # Neighbouring steps err alike: as if there were half as many.
        variance = (noise / share) ** 2 * 3.0 * (1.0 / len(plain) + 1.0 / len(drafted))
        self._factor(self._requests).observe(found, variance)

    def _factor(self, n: int) -> _Factor:
        size = _size(n)
        if size not in self._factors:
            near = min(self._factors, key=lambda other: abs(other - size), default=None)
            known = _Factor() if near is None else self._factors[near]
            self._factors[size] = _Factor(known.mean, math.sqrt(known.variance + NEIGHBOUR**2))
            if near is None:
                self._factors[size] = known
        return self._factors[size]

    # --- now and then -----------------------------------------------------------------------

    def _plan(self, n: int, owed: int = 0) -> None:
        factor = self._factor(n)
        factor.variance = min(UNKNOWN**2, factor.variance + DRIFT**2 * self._since)
        self._blind = 0.0 if self._usual else self._blind + self._since
        self._since = 0.0
        base = self.cost.rows(n)
        self._setting = setting = self.worth.plan(n, self.cost, base, factor.mean)
        self._requests = n
        tokens = 1.0 + self._tokens.ratio() * (setting.tokens - 1.0)
        extra = self._extra.ratio() * setting.extra
        self.gain = tokens * base / (base + extra)
        ahead = math.log(self.gain)
        if abs(ahead) > MARGIN:
            self._usual = ahead > 0.0
        self._switch(self._usual)
        makes = "make" if self._usual else "would make"
        reason = f"drafts {makes} {self.gain:.2f} x the tokens/s of none at {n} requests"
        self.state = DraftingState(self._usual, n, round(self.gain, 3), reason)
        share = extra / (base + extra)
        doubt = share * math.sqrt(factor.variance) / factor.mean + DRIFT * math.sqrt(self._blind)
        length = round(min(MOST, max(FEWEST, TRIAL_SECONDS / (self._step or TRIAL_SECONDS))))
        price = length * self._step * max(MARGIN, abs(ahead)) + factor.mean * self.cost.drafting(1, owed)
        if abs(ahead) < HOPE * doubt and price < self._purse and len(self._log) >= length:
            self._purse -= price
            self._begin_trial(length)

    def known(self) -> dict[int, tuple[float, float]]:
        """Factors by batch class, for the next start."""
        return {size: (f.mean, math.sqrt(f.variance)) for size, f in self._factors.items()}


def _size(n: int) -> int:
    """Batches of about one size: around powers of two, as loads are."""
    return round(math.log2(n))
