"""The draft-length controller: how deep each request drafts. Pure.

It plans for a stretch of steps at a time, for the most expected tokens per second (`allocate`), from three
things: what steps cost by the table made at start-up (`costs`), by how much steps of this batch size and so
many drafts have turned out to miss it (`measured`), and what each request's drafts have been worth
(`acceptance`). Within a stretch every request keeps its depth, so a step costs next to nothing to decide.

A request that does not draft leaves its draft layer's cache behind (`owed`); the rows are caught up in one
piece when it drafts again, and that cost is spread over the steps that it is to pay for.

What is not done is not learnt. So a bounded share of the time goes into trying: a short stretch with one
draft more, one less or none, where that could be better for all that is known, and when enough has been put
aside for what it is expected to cost. (Where the executor gates drafts, guess by guess, `gated` decides.)

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
from nextn.speculative.measured import Measured, batch_class, between
from nextn.speculative.ration import Ration

_STRETCH, _TRIAL = 24, 10  # steps
_FEWEST = 4  # steps that say how long such steps take
_TRIED_FIRST = 64  # drafts that are verified before any rate is believed
_SURE = 2.0  # standard deviations by which a setting may be better than it seems and still be tried
_IDLE = 2.0  # times the price, put aside: then one request tries what nothing speaks for, as texts change
_LEAST_PRICE = 0.01  # of a step's time, for every step of a trial of one request
# Steps over which the cost of catching up is spread, at the least. What has gone on for long is expected to
# go on for as long again, so many owed rows are spread over more.
_CATCH_UP_STEPS = 64
_COMMITTED_GAIN = 0.3  # of the moving average: tokens of a stretch


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


def check_most(most: int) -> None:
    """Raises ValueError for a number of drafts that automatic depth cannot be bounded by."""
    if not 1 <= most <= MOST_DEPTH:
        raise ValueError(f"the most drafts are {most}; automatic depth takes 1 to {MOST_DEPTH}")


class DepthController:
    gate: Gate | None = None  # drafts are as deep as they are to be

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
        check_most(most)
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
        self.ration = Ration(0.01, plan=150e-6, each=10e-6, stretch=_STRETCH, trial=_TRIAL)

    # --- every step -------------------------------------------------------------------------

    def enter(self, request: DraftState) -> None:
        """A request that was not there when the stretch was planned gets what others like it have got."""
        give([request], self._depth_of)

    def note(self, request: DraftState, verified: int, accepted: int, bins: bytes = b"") -> None:
        """A draft of the request was verified, and so many leading guesses held."""
        request.note(verified, accepted)

    def step(self, work: StepWork, seconds: float | None) -> None:
        """A step has run. seconds: from the end of the one before; None: there was none right before."""
        self._steps += 1
        if seconds is None:
            return
        self.ration.step(seconds)
        if self._steps > 1:  # the first one verifies what the stretch before has drafted
            self._ratios.append(seconds / self.costs.step(work))

    def due(self, requests: int) -> bool:
        """Is it time to `plan`, with so many requests decoding?"""
        return self.ration.due(self._steps, self._trial, self._requests, requests)

    # --- every stretch ----------------------------------------------------------------------

    def plan(self, requests: Sequence[DraftState]) -> None:
        """Sets every request's `depth` for the steps to come."""
        if not requests:
            self._ratios = []  # or they are piled up for as long as each step ends its requests
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
        depth_of = dict(zip(levels, chosen.depths, strict=True))
        if depth_of:
            # A request may come to a level that nobody was at: it gets what the nearest one gets.
            self._depth_of = {
                level: min((abs(known - level), known, d) for known, d in depth_of.items())[2]
                for level in range(LEVELS)
            }
        give(requests, self._depth_of)
        self._begin(requests, trial=fresh)

    def _begin(self, requests: Sequence[DraftState], trial: bool) -> None:
        self._requests, self._steps, self._trial = len(requests), 0, trial
        self._ratios = []
        self._mean = sum(min(r.depth, MOST_DEPTH) for r in requests) / len(requests)
        self.ration.think(len(requests))

    def _learn(self, requests: Sequence[DraftState]) -> None:
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
        price = _TRIAL * self.ration.seconds * max(0.0, 1.0 - other.rate / chosen.rate)
        price += self.costs.extend(owed) if owed else 0.0
        if not self.ration.within_reach(price):
            return self._try_one(requests, chosen, by_plan)
        if price > self.ration.purse:
            return False
        give(requests, depth_of)
        self.ration.purse -= price
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
        price = _TRIAL * (costs.target(rows + 1) - costs.target(rows) + (dearer - 1.0) * self.ration.seconds)
        if depth := depth_of[first.level]:
            deeper = sum(depth_of.get(r.level, 0) > depth for r in requests)
            price += _TRIAL * (costs.draft(deeper + 1) - costs.draft(deeper))
        else:
            price += _TRIAL * (costs.extend(2) if not chosen.mean else 0.0) + costs.extend(first.owed)
        price = max(price, _LEAST_PRICE * _TRIAL * self.ration.seconds)
        if _IDLE * price > self.ration.purse:
            return False
        give(requests, depth_of)
        first.depth += 1
        self.ration.purse -= price
        return True

    def _alternatives(self, depths: Sequence[int]) -> list[list[int]]:
        if not depths:
            return []
        fewer = [max(0, d - 1) for d in depths]
        more = [min(self.most, d + 1) for d in depths]
        none = [0] * len(depths)
        return [d for d in ([more, fewer] if fewer == none else [more, fewer, none]) if d != list(depths)]

    def _doubt(self, depth: int, other: Allocation) -> float:
        """How uncertain the logarithm of `other`'s tokens is, as it goes deeper than what is verified now."""
        gained = other.tokens / max(1, self._requests) - 1.0
        return gained * 0.5 * math.sqrt(self.acceptance.variance[min(depth, self.most - 1)]) / (1.0 + gained)
