"""The controller of gated drafts: what is worth a guess, and whether to draft at all. Pure.

Where the executor gates drafts (`nextn.gate`), how deep each one goes is seen to there, guess by guess. What
is left to decide, for a stretch of steps at a time, are the gate's thresholds and whether drafts are worth
it. Both come from what steps cost, by the table made at start-up and by how much steps have turned out to
miss it (`pace`), and from how many tokens steps with drafts have come to.

Without drafts the draft layer's cache is left behind (`owed`), and what was left behind must be caught up
with: to begin with drafts and then to do without is cheap, the other way round is dear. So drafts are made
until it is known that they do not pay, and now and then a short stretch without them, or with them, is
tried, as far as the ration goes (`ration`), to keep knowing.

The choice can change no text, only its speed. Deterministic: no clock, no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nextn.draft import MOST_DEPTH
from nextn.gate import Gate
from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.depth import DraftState, check_most
from nextn.speculative.leads import Leads
from nextn.speculative.measured import batch_class
from nextn.speculative.pace import EXTEND, PASS, PASS_ROWS, ROWS, Pace
from nextn.speculative.ration import Ration

_STRETCH, _TRIAL = 32, 12  # steps
_FEWEST = 4  # steps that say how long such steps take
_TRIED_FIRST = 64.0  # drafts, those assumed below among them, before anything is believed
# Tokens of a request and step with drafts: a first guess, and what it weighs.
_FIRST_TOKENS, _FIRST_DRAFTS = 2.2, 16.0
_REMEMBERED = 1000.0  # drafts; by how many tokens they bring
_MEAN_GAIN = 0.3  # of moving averages
# Standard deviations by which to do without drafts must be better, at least by so much, and how often it must
# have been tried with about so many requests since drafts were last begun with: what was left behind in the
# meantime makes it dear to be wrong. The other way round it must be better by _LEAST_GAIN, too.
_SURE, _LEAST_GAIN, _TRIED = 1.5, 0.01, 2
_HOPE = 2.0  # and by which something may be better than it seems and still be tried
_TOKENS_DOUBT = 0.01  # of what drafts would bring, for each stretch without them
# Plans, one that verifies whatever was drafted, for about so many drafts: what is never verified is never
# seen to hold. And where chains hardly ever go on, while it is not known what a pass costs, one in which they
# go on for a part of what it seems to.
_OPEN_EVERY, _OPENED = 48, 64
_FEW_PASSES, _DEEPER_EVERY, _UNSURE_OF_PASSES, _PART = 0.25, 12, 0.5, 0.3
# While it is not known what a row costs, relative to what a step takes without drafts, thresholds are by so
# much lower in some steps and higher in others: what many requests verify together hardly differs by itself.
_UNSURE_OF_ROWS, _APART = 0.25, 0.15
_LEAST_LEFT = 0.3  # of a token's worth, after the draft layer's pass over it


class _Stretch:
    """Steps since the last plan, of so many requests. usual: with drafts as they seem worth it. works,
    seconds: of those steps that tell how long such steps take. tokens, drafts: see `GatedController.note`."""

    def __init__(
        self, requests: int = 0, trial: bool = False, like_before: bool = False, usual: bool = False
    ) -> None:
        self.requests, self.trial, self.like_before, self.usual = requests, trial, like_before, usual
        self.steps = self.tokens = self.drafts = 0
        self.forget()

    def forget(self) -> None:
        self.works: list[StepWork] = []
        self.seconds: list[float] = []


class _Usual:
    """A step with drafts, as moving averages. drafts: verified, of a request. passes: beyond the first.
    share: of the requests that a pass goes over."""

    def __init__(self) -> None:
        self.drafts, self.passes, self.share = 1.5, 1.0, 0.5

    def note(self, works: Sequence[StepWork]) -> None:
        requests = sum([w.requests for w in works])
        passes = sum([len(w.passes) for w in works])
        if not requests or not any(w.drafts for w in works):
            return
        self.drafts += _MEAN_GAIN * (sum([w.drafts for w in works]) / requests - self.drafts)
        self.passes += _MEAN_GAIN * (passes / len(works) - self.passes)
        if passes:
            over = sum([sum(w.passes) for w in works]) / passes * len(works) / requests
            self.share += _MEAN_GAIN * (over - self.share)


class GatedController:
    def __init__(self, costs: StepCosts, *, most: int = MOST_DEPTH) -> None:
        """most: drafts a request gets at most."""
        check_most(most)
        self.costs, self.most = costs, most
        self.pace, self.leads = Pace(costs), Leads()
        self.ration = Ration(0.006, plan=600e-6, each=6e-6, stretch=_STRETCH, trial=_TRIAL)
        self.gate = Gate(self.leads.rates(), keep=0.0, usual=1.0, each=0.0, passing=0.0)
        self._gates = self.gate, self.gate  # of one pair of steps and of the next
        self._opened = 0  # steps of the stretch, from its first one on, in which everything is let through
        self.drafting = True
        self._now = True  # the stretch that runs is with drafts, by way of trial perhaps
        self._stretch = _Stretch()
        self._usual = _Usual()
        self._tokens, self._drafts = _FIRST_TOKENS * _FIRST_DRAFTS, _FIRST_DRAFTS
        self._plans = 0
        self._tried: dict[int, int] = {}  # trials without drafts, by batch size
        self._without = 0  # stretches since there were drafts

    # --- every step -------------------------------------------------------------------------

    def enter(self, request: DraftState) -> None:
        """A request that was not there when the stretch was planned."""
        request.depth = self.most * self._now if request.fixed is None else request.fixed

    def note(self, request: DraftState, verified: int, accepted: int, bins: bytes) -> None:
        """So many leading guesses of a draft were verified, and so many of these held. bins: of the guesses
        that were made; none where they were not gated."""
        if bins:
            self.leads.note(bins, verified, accepted)
        if request.fixed is None:
            self._stretch.tokens += 1 + accepted
            self._stretch.drafts += 1

    def step(self, work: StepWork, seconds: float | None) -> None:
        """A step has run. seconds: from the end of the one before; None: there was none right before."""
        stretch = self._stretch
        stretch.steps += 1
        self.gate = self._gate_of(stretch.steps)
        if seconds is None:
            return
        self.ration.step(seconds)
        own = work.requests + work.drafts
        # Long prompts, and what drafting had left behind, are of another kind.
        if work.requests and work.rows <= 2 * own and work.extended <= 2 * own:
            stretch.works.append(work)
            stretch.seconds.append(seconds)

    def due(self, requests: int) -> bool:
        """Is it time to `plan`, with so many requests decoding?"""
        stretch = self._stretch
        return self.ration.due(stretch.steps, stretch.trial, stretch.requests, requests)

    # --- every stretch ----------------------------------------------------------------------

    def plan(self, requests: Sequence[DraftState]) -> None:
        """Sets the gate, and who drafts in the steps to come."""
        if not requests:
            self._stretch.forget()  # or what steps took is piled up for as long as each one ends its requests
            return
        self._learn()
        n = len(requests)
        drafted, plain = self._usual_parts(n)
        tokens = self._tokens / self._drafts
        with_drafts, without = self.pace.seconds(n, drafted), self.pace.seconds(n, plain)
        gain = math.log(tokens * without / with_drafts)  # of drafts: what they speed up, as a logarithm
        doubt = self.pace.spread(n, drafted, plain)
        self.drafting = self._worth_it(n, gain, doubt)
        usually = self._set_gate(n, tokens, max(tokens / with_drafts, 1.0 / without))
        step = without if self.drafting else with_drafts  # of the other kind
        trial = not self._stretch.trial and self._affords(requests, gain, doubt, step)
        before, self._now = self._now, self.drafting != trial
        self._without = 0 if self._now else self._without + 1
        for r in requests:
            self.enter(r)
        usual = self._now and usually and any(r.fixed is None for r in requests)
        self._stretch = _Stretch(n, trial, self._now == before, usual)
        self.ration.think(n)

    def _worth_it(self, n: int, gain: float, doubt: float) -> bool:
        """To draft, until something else is decided."""
        if self.drafting:
            surely_not = gain + max(_LEAST_GAIN, _SURE * doubt) < 0.0
            return not surely_not or self._tried.get(batch_class(n), 0) < _TRIED
        if gain > _LEAST_GAIN:
            self._tried.clear()
            return True
        return False

    def _affords(self, requests: Sequence[DraftState], gain: float, doubt: float, step: float) -> bool:
        """Is the other way, with or without drafts, to be tried now, in steps of so many seconds? If so, it
        is paid for."""
        n, ration = len(requests), self.ration
        free = [r for r in requests if r.fixed is None]  # the others take no part in it
        if not free or self._drafts < _TRIED_FIRST:
            return False
        if self.drafting:
            ahead = gain
            owed = round(_TRIAL * len(free) * self._tokens / self._drafts)
        else:
            ahead = -gain
            doubt += _TOKENS_DOUBT * math.sqrt(self._without)
            owed = sum([r.owed for r in free])
        lost = -step * math.expm1(-ahead)  # in each of them; below 0: it is won
        price = max(0.0, _TRIAL * lost + self.pace.factors(n)[EXTEND] * self.costs.extend(owed))
        if ahead >= _HOPE * doubt or price > ration.purse:
            return False
        ration.purse -= price
        return True

    def _learn(self) -> None:
        stretch = self._stretch
        if len(stretch.works) >= _FEWEST:
            self.pace.note(stretch.requests, stretch.works, stretch.seconds, stretch.like_before)
            if stretch.usual:
                self._usual.note(stretch.works)
            if stretch.trial and not self._now:
                batch = batch_class(stretch.requests)
                self._tried[batch] = self._tried.get(batch, 0) + 1
        if stretch.usual:  # where all is let through, more tokens come of it
            self._tokens += stretch.tokens
            self._drafts += stretch.drafts
        if self._drafts > _REMEMBERED:
            self._tokens *= _REMEMBERED / self._drafts
            self._drafts = _REMEMBERED
        self.leads.learn()

    def _usual_parts(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Of a step with drafts, which has not a whole number of passes, and of one without."""
        usual, first = self._usual, self.costs.draft(1)
        drafts, over = max(1, round(n * usual.drafts)), max(1, round(n * usual.share))
        extended = round(n * self._tokens / self._drafts)
        works = [StepWork(n + drafts, extended, (), n, drafts), StepWork(n, requests=n)]
        drafted, plain = self.pace.parts(works)
        drafted[PASS] = usual.passes * first
        drafted[PASS_ROWS] = usual.passes * (self.costs.draft(over) - first)
        return drafted, plain

    def _set_gate(self, n: int, tokens: float, rate: float) -> bool:
        """rate: tokens per second, of a request. Does it let through what seems worth it, and no more?"""
        costs, factors = self.costs, self.pace.factors(n)
        rows, extended = n + round(n * self._usual.drafts), round(n * tokens)
        row = factors[ROWS] * (costs.target(rows + n) - costs.target(rows)) / n
        after = factors[EXTEND] * (costs.extend(extended + n) - costs.extend(extended)) / n
        one, all_ = costs.draft(1), costs.draft(n)
        each = factors[PASS_ROWS] * (all_ - one) / (n - 1) if n > 1 else 0.0
        # What a second is worth, in tokens; a token that holds takes the draft layer's pass over it, too.
        worth = rate * n / max(_LEAST_LEFT, 1.0 - rate * n * after)
        self._plans += 1
        shallow = self._usual.passes < _FEW_PASSES and self.pace.doubt(n, PASS) > _UNSURE_OF_PASSES
        opened, deeper = self._plans % _OPEN_EVERY == 0, shallow and self._plans % _DEEPER_EVERY == 0
        part = _PART if deeper else 1.0
        apart = _APART if self.pace.doubt(n, ROWS) > _UNSURE_OF_ROWS else 0.0
        gate = Gate(
            self.leads.rates(),
            keep=worth * row,
            usual=self.leads.usual(),
            each=part * worth * (row + each),
            passing=part * worth * max(0.0, factors[PASS] * one - each),
        )
        self._gates = _times(gate, 1.0 - apart), _times(gate, 1.0 + apart)
        self._opened = -(-_OPENED // n) if opened else 0
        self.gate = self._gate_of(0)
        return not (opened or deeper)

    def _gate_of(self, step: int) -> Gate:
        """Of a stretch's step. By pairs of steps: where few rows are verified, which were drafted the step
        before, few passes are made as often as many."""
        gate = self._gates[step // 2 % 2]
        return gate._replace(keep=0.0) if step < self._opened else gate


def _times(gate: Gate, by: float) -> Gate:
    """Thresholds so many times as high."""
    return gate._replace(keep=by * gate.keep, each=by * gate.each, passing=by * gate.passing)
