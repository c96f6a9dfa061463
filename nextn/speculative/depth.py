"""The draft-length controller: how deep each request drafts. Pure.

It plans for a stretch of steps at a time, for the most expected tokens per second (`allocate`), from three
things: what steps cost by the table made at start-up (`costs`), by how much steps of this batch size and so
many drafts have turned out to miss it (`measured`), and what each request's drafts have been worth
(`acceptance`). Within a stretch every request keeps its depth, so a step costs next to nothing to decide.

A request that does not draft leaves its draft layer's cache behind (`owed`); the rows are caught up in one
piece when it drafts again, and that cost is spread over the steps that it is to pay for.

What is not done is not learnt. So a bounded share of the time goes into trying: a short stretch with one
draft more, one less or none, where that could be better for all that is known, and when enough has been put
aside for what it is expected to cost. Where the executor can gate drafts (`gating`), guess by guess, the plan
only says who drafts.

The choice can change no text, only its speed. Deterministic: no clock, no random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from nextn.draft import MOST_DEPTH
from nextn.gate import Gate
from nextn.speculative.acceptance import LEVELS, PRIOR, AcceptanceModel, RequestAcceptance
from nextn.speculative.allocate import Allocation, Base, Group, Planner
from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.gating import Gating
from nextn.speculative.measured import Measured, batch_class, between

_STRETCH, _TRIAL = 24, 10  # steps
_FEWEST = 4  # steps that say how long such steps take
# Thinking is rationed: seconds of it, fixed and for each request, as measured in CPython, and the share of
# the time that may go there. Until that is paid off a stretch goes on.
_THINK_SHARE, _THINK, _THINK_EACH = 0.01, 150e-6, 10e-6
_TRIED_FIRST = 64  # drafts that are verified before any rate is believed
# Shares of the time that go into trials: at last, and in the beginning, when all is new.
_TRIAL_SHARE, _FIRST_SHARE, _SETTLING = 0.003, 0.01, 40
_PURSE = 64.0  # steps' worth of time that may be put aside at most
_SURE = 2.0  # standard deviations by which a setting may be better than it seems and still be tried
_IDLE = 2.0  # times the price, put aside: then one request tries what nothing speaks for, as texts change
_LEAST_PRICE = 0.01  # of a step's time, for every step of a trial of one request
# Steps over which the cost of catching up is spread, at the least. What has gone on for long is expected to
# go on for as long again, so many owed rows are spread over more.
_CATCH_UP_STEPS = 64
_WORTH_LEAVING_OUT = (
    1.03  # what some requests must gain by not drafting at all, where a gate parts them anyway
)
_COMMITTED_GAIN, _SECONDS_GAIN = 0.3, 0.05  # of moving averages: tokens of a stretch, seconds of a step


class DraftState(RequestAcceptance):
    """One request, as the controller sees it. Whoever schedules it keeps `owed`: committed positions that the
    draft layer has not seen. `fixed`: a depth that the request asked for; None: automatic. `depth`: how many
    drafts it is to get in every step, by the plan."""

    __slots__ = ("depth", "fixed", "owed")

    def __init__(self, fixed: int | None = None) -> None:
        super().__init__()
        self.fixed, self.owed = fixed, 0
        self.depth = 0


def give(requests: Iterable[DraftState], depth_of: Mapping[int, int]) -> None:
    """Each request the depth of its level, or the one it asked for."""
    for r in requests:
        r.depth = depth_of[r.level] if r.fixed is None else r.fixed


class DepthController:
    def __init__(
        self,
        costs: StepCosts,
        *,
        most: int = MOST_DEPTH,
        prior: Sequence[float] = PRIOR,
        doubt: float = 1.0,
    ) -> None:
        """most: drafts a request gets at most, up to MOST_DEPTH. prior: acceptance by depth, conditional.
        doubt: of the costs, see Measured."""
        if not 1 <= most <= MOST_DEPTH:
            raise ValueError(f"the most drafts are {most}; automatic depth takes 1 to {MOST_DEPTH}")
        self.costs, self.most = costs, most
        self.acceptance = AcceptanceModel(prior, most)
        self.measured = Measured(doubt)
        self._committed = 2.0  # tokens that a drafting request commits in a step
        self._depth_of = dict.fromkeys(range(LEVELS), min(2, most))
        # The stretch that runs.
        self._requests = 0  # at its beginning; 0: nothing is planned
        self._mean = 0.0  # drafts a request
        self._steps = 0
        self._ratios: list[float] = []  # real over predicted seconds of each step
        self._trial = False
        self._thought = 0.0  # seconds of thinking that are allowed; below 0: the next are to be waited for
        self._purse = 0.0  # seconds put aside for trials
        self._gating = Gating()
        self._stretches = 0
        self._seconds = 0.0  # of a step, usually

    @property
    def gate(self) -> Gate:
        """What drafts of automatic depth are cut short by, where the executor can."""
        return self._gating.gate

    # --- every step -------------------------------------------------------------------------

    def enter(self, request: DraftState) -> None:
        """A request that was not there when the stretch was planned gets what others like it have got."""
        give([request], self._depth_of)

    def note(self, request: DraftState, verified: int, accepted: int, bins: Sequence[int] = ()) -> None:
        """A draft of the request was verified, and so many leading guesses held. bins: of the guesses that
        were made, where they were gated."""
        if bins:
            verified, accepted = self._gating.note(bins, verified, accepted)
        request.note(verified, accepted)

    def step(self, work: StepWork, seconds: float | None) -> None:
        """A step has run. seconds: from the end of the one before; None: there was none right before."""
        self._steps += 1
        if seconds is None:
            return
        self._thought += _THINK_SHARE * seconds
        self._seconds += _SECONDS_GAIN * (seconds - self._seconds)
        share = _TRIAL_SHARE + _FIRST_SHARE / (1.0 + self._stretches / _SETTLING)
        self._purse = min(_PURSE * seconds, self._purse + share * seconds)
        if self._steps > 1:  # the first one verifies what the stretch before has drafted
            self._ratios.append(seconds / self.costs.step(work))

    def due(self, requests: int) -> bool:
        """Is it time to `plan`, with so many requests decoding?"""
        if self._thought < 0.0:
            return False
        if abs(requests - self._requests) * 8 > self._requests:
            return True
        return self._steps > (_TRIAL if self._trial else _STRETCH)

    # --- every stretch ----------------------------------------------------------------------

    def plan(self, requests: Sequence[DraftState]) -> None:
        """Sets every request's `depth` for the steps to come."""
        if not requests:
            return
        self._learn(requests)
        n = len(requests)
        levels: dict[int, int] = {}
        base = Base(n, float(n), extended=self._committed)
        for r in requests:
            if r.fixed is None:
                levels[r.level] = levels.get(r.level, 0) + 1
            else:
                self._pin(r.level, r.fixed, base)
        if total := sum(r.owed for r in requests):
            steps = max(_CATCH_UP_STEPS, total / (self._committed * n))
            base.owed = self.costs.extend(total) / steps
        groups = [Group(m, self.acceptance.curve(level).survival) for level, m in levels.items()]
        planner = Planner(groups, base, self.costs, self.measured.factors(batch_class(n)))
        chosen = planner.best()
        fresh = self.measured.fresh(batch_class(n))
        if fresh or self.acceptance.judged < _TRIED_FIRST:
            # To begin with drafts and then to do without is cheap; the other way round much is owed.
            chosen = planner.of([max(d, min(2, self.most)) for d in chosen.depths])
        elif not self._trial and self._try(requests, planner, chosen, levels):
            return self._begin(requests, trial=True)
        if self._gating.used and 0 in chosen.depths:
            # The gate parts the hopeful from the others; to leave some out altogether must pay for itself.
            every = planner.of([max(chosen.depths)] * len(groups))
            chosen = every if every.rate * _WORTH_LEAVING_OUT > chosen.rate else chosen
        depth_of = dict(zip(levels, chosen.depths, strict=True))
        if depth_of:
            # A request may come to a level that nobody was at: it gets what the nearest one gets.
            self._depth_of = {
                level: min((abs(known - level), known, d) for known, d in depth_of.items())[2]
                for level in range(LEVELS)
            }
        if self._gating.used and any(depth_of.values()):
            # The gate says, guess by guess, how deep it goes.
            self._depth_of = {level: self.most if d else 0 for level, d in self._depth_of.items()}
        give(requests, self._depth_of)
        self._gating.plan(planner, self.most, self._committed)
        self._begin(requests, trial=fresh)

    def _begin(self, requests: Sequence[DraftState], trial: bool) -> None:
        self._requests, self._steps, self._trial = len(requests), 0, trial
        self._ratios = []
        self._mean = sum(min(r.depth, MOST_DEPTH) for r in requests) / len(requests)
        self._thought = min(0.0, self._thought) - _THINK - _THINK_EACH * len(requests)
        self._stretches += 1

    def _learn(self, requests: Sequence[DraftState]) -> None:
        gated = self._gating.stretch(self._steps * self._requests)
        if gated is not None:
            self._mean = min(gated, float(MOST_DEPTH))
        if len(self._ratios) >= _FEWEST:
            self.measured.note(batch_class(self._requests), self._mean, median(self._ratios))
        elif self._requests:
            self.measured.interrupt()
        accepted = steps = 0
        for r in requests:
            for (_, held), count in r.outcomes.items():
                accepted += held * count
                steps += count
        if steps:
            self._committed += _COMMITTED_GAIN * (1.0 + accepted / steps - self._committed)
        self.acceptance.observe(requests, self._steps)

    def _pin(self, level: int, drafts: int, base: Base) -> None:
        """Takes up drafts that are made whatever they bring."""
        base.rows += drafts
        base.tokens += sum(self.acceptance.curve(level).survival[:drafts])
        base.drafting += [0] * (drafts - len(base.drafting))
        for j in range(drafts):
            base.drafting[j] += 1

    # --- trying -----------------------------------------------------------------------------

    def _try(
        self, requests: Sequence[DraftState], planner: Planner, chosen: Allocation, levels: Iterable[int]
    ) -> bool:
        """Perhaps gives the requests another depth than `chosen` has for them."""
        batch = batch_class(len(requests))
        others = [planner.of(depths) for depths in self._alternatives(chosen.depths)]
        found: tuple[float, Allocation] | None = None
        for other in others:
            depths = other.depths
            doubt = self.measured.spread(batch, chosen.mean, other.mean)
            if max(depths) > max(chosen.depths):
                doubt += self._doubt(max(chosen.depths), other)
            hope = math.log(other.rate / chosen.rate) + _SURE * doubt
            if hope > 0.0 and (found is None or doubt > found[0]):
                found = doubt, other  # the one that there is most to learn of
        by_plan = dict(zip(levels, chosen.depths, strict=True))
        if found is None:
            return self._try_one(requests, chosen, by_plan)
        other = found[1]
        depth_of = dict(zip(levels, other.depths, strict=True))
        owed = sum(r.owed for r in requests if r.fixed is None and depth_of[r.level])
        price = _TRIAL * self._seconds * max(0.0, 1.0 - other.rate / chosen.rate)
        price += self.costs.extend(owed) if owed else 0.0
        if price > _PURSE * self._seconds:
            return self._try_one(requests, chosen, by_plan)
        if price > self._purse:
            return False
        give(requests, depth_of)
        self._purse -= price
        return True

    def _try_one(
        self, requests: Sequence[DraftState], chosen: Allocation, depth_of: Mapping[int, int]
    ) -> bool:
        """Perhaps gives one request, the one that owes least, a draft more than `chosen` has for it."""
        free = [r for r in requests if r.fixed is None and depth_of[r.level] < self.most]
        if not free:
            return False
        first = min(free, key=lambda r: r.owed)
        costs, rows = self.costs, round(len(requests) * (1.0 + chosen.mean))
        factors = self.measured.factors(batch_class(len(requests)))
        dearer = between(factors, chosen.mean + 1.0 / len(requests)) / between(factors, chosen.mean)
        price = _TRIAL * (costs.target(rows + 1) - costs.target(rows) + (dearer - 1.0) * self._seconds)
        if depth := depth_of[first.level]:
            deeper = sum(depth_of.get(r.level, 0) > depth for r in requests)
            price += _TRIAL * (costs.draft(deeper + 1) - costs.draft(deeper))
        else:
            price += _TRIAL * (costs.extend(2) if not chosen.mean else 0.0) + costs.extend(first.owed)
        price = max(price, _LEAST_PRICE * _TRIAL * self._seconds)
        if _IDLE * price > self._purse:
            return False
        give(requests, depth_of)
        first.depth += 1
        self._purse -= price
        return True

    def _alternatives(self, depths: Sequence[int]) -> list[list[int]]:
        if not depths:
            return []
        fewer = [max(0, d - 1) for d in depths]
        more = [min(self.most, d + 1) for d in depths]
        none = [0] * len(depths)
        if self._gating.used:  # how deep it goes is not ours to say
            return [none] if any(depths) else [more]
        return [d for d in ([more, fewer] if fewer == none else [more, fewer, none]) if d != list(depths)]

    def _doubt(self, depth: int, other: Allocation) -> float:
        """How uncertain the logarithm of `other`'s tokens is, as it goes deeper than what is verified now."""
        gained = other.tokens / max(1, self._requests) - 1.0
        return gained * 0.5 * math.sqrt(self.acceptance.variance[min(depth, self.most - 1)]) / (1.0 + gained)
