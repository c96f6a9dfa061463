"""The draft-length controller: how deep each request drafts, and how much of that is verified. Pure.

Two decisions a step, both for the most expected tokens per second (`allocate`) under what steps cost
(`costs`) and what drafts have been worth (`acceptance`):

    propose  how many drafts each request is to get for the next step; 0 where drafting does not pay
    cut      how many of the drafts in hand are verified now, when their confidences and the batch are known

A request that does not draft leaves its draft layer's cache behind (`owed`); the rows are caught up in one
piece when it drafts again, and that cost is spread over the steps that it is to pay for.

What is not done is not learnt. So a bounded share of the time goes into probes: a request in turn drafts one
deeper than pays, and now and then a step verifies nothing, so that the cost of a plain step stays known. A
probe is made when enough has been put aside for what it is expected to cost.

The choice can change no text, only its speed. Deterministic: no clock, no random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from nextn.draft import MOST_DEPTH
from nextn.speculative.acceptance import (
    LEVELS,
    PRIOR,
    AcceptanceModel,
    RequestAcceptance,
    confidence_bin,
)
from nextn.speculative.allocate import Allocation, Base, Group, best_depths, likeliest
from nextn.speculative.costs import StepCosts, StepTimes, StepWork

_DEEPER_SHARE, _PLAIN_SHARE = 0.005, 0.0015  # of the time, for the two kinds of probes
_PURSE = 4.0  # steps' worth of time that may be put aside at most
_TURNS = 8  # of so many probes, one goes to a request that owes more than others
# Steps over which the cost of catching up is spread, at the least. What has gone on for long is expected to
# go on for as long again, so many owed rows are spread over more.
_CATCH_UP_STEPS = 64
_TRIED_FIRST = 128  # drafts that are verified before any rate is believed
_CHEAP = 0.05  # drafts are not cut where a row costs less than so much of a token
_COMMITTED_GAIN = 0.1  # of the moving average of committed tokens
# Thinking is rationed: seconds for learning from a step and planning anew, fixed and for each request, as
# measured in CPython, and the share of the time that may go there. Steps in between keep to the plan.
_THINK_SHARE, _THINK, _THINK_EACH = 0.01, 150e-6, 20e-6


class DraftState(RequestAcceptance):
    """One request, as the controller sees it. Whoever schedules it keeps `owed`: committed positions that the
    draft layer has not seen. `fixed`: a depth that the request asked for; None: automatic."""

    __slots__ = ("fixed", "owed")

    def __init__(self, fixed: int | None = None) -> None:
        super().__init__()
        self.fixed, self.owed = fixed, 0


class DepthController:
    def __init__(self, costs: StepCosts, *, most: int = MOST_DEPTH, prior: Sequence[float] = PRIOR) -> None:
        """most: drafts a request gets at most, up to MOST_DEPTH. prior: acceptance by depth, conditional."""
        if not 1 <= most <= MOST_DEPTH:
            raise ValueError(f"the most drafts are {most}; automatic depth takes 1 to {MOST_DEPTH}")
        self.costs, self.most = costs, most
        self.acceptance = AcceptanceModel(prior, most)
        self._committed = 2.0  # tokens that a drafting request commits in a step
        self._plan: Allocation | None = None
        self._depth_of: list[int] = []  # by level, as planned
        self._more = (0, 0)  # a level, and how many of its requests get one more
        self._planned_for = 0  # requests
        self._due = True  # there is news that the plan does not know
        self._thought = 0.0  # seconds of thinking that are allowed; below 0: the next are to be waited for
        self._deeper = self._plain = 0.0  # seconds put aside for probes
        self._plain_price = 0.0
        self._probing: DraftState | None = None  # it has been given a draft more than pays
        self._probed = False  # this step verifies a probe: it is learnt from in any case
        self._turn = 0

    # --- deciding ---------------------------------------------------------------------------

    def propose(self, requests: Sequence[DraftState]) -> list[int]:
        """Drafts that each request is to get for the next step."""
        if not requests:
            return []
        n = len(requests)
        if self._due or abs(n - self._planned_for) * 8 > n:
            return self._think(requests)
        return self._planned(requests)

    def _planned(self, requests: Sequence[DraftState]) -> list[int]:
        """By the plan: each request its level's depth, and the first of one level one more."""
        depth_of, (level, more) = self._depth_of, self._more
        depths = [depth_of[r.level] if r.fixed is None else r.fixed for r in requests]
        if more:
            for i, r in enumerate(requests):
                if more and r.level == level and r.fixed is None:
                    depths[i] += 1
                    more -= 1
        return depths

    def _think(self, requests: Sequence[DraftState]) -> list[int]:
        """Plans anew, and perhaps gives a request a probe, in this step only."""
        self._due = False
        self._planned_for = n = len(requests)
        levels: dict[int, int] = {}
        base = Base(n, float(n), extended=self._committed)
        for r in requests:
            if r.fixed is None:
                levels[r.level] = levels.get(r.level, 0) + 1
            else:
                self._pin(r, r.fixed, base)
        owed = [r.owed for r in requests]
        if total := sum(owed):
            steps = max(_CATCH_UP_STEPS, total / (self._committed * n))
            base.owed = self.costs.extend(total) / steps
        groups = [Group(m, self.acceptance.curve(level).survival) for level, m in levels.items()]
        plan = self._plan = best_depths(groups, base, self.costs)
        least = min(2, self.most) if self.acceptance.judged < _TRIED_FIRST else 0
        depth_of = {level: max(d, least) for level, d in zip(levels, plan.depths, strict=True)}
        # A request may come to a level that nobody was at: it gets what the nearest one gets.
        self._depth_of = [
            min((abs(known - level), known, d) for known, d in depth_of.items())[2] if depth_of else 0
            for level in range(LEVELS)
        ]
        self._more = (list(levels)[plan.of], plan.more) if plan.more else (0, 0)
        depths = self._planned(requests)
        if levels:
            self._probe_deeper(requests, owed, depths, plan)
        return depths

    def cut(
        self,
        requests: Sequence[DraftState],
        in_hand: Sequence[int],
        confidences: Sequence[Sequence[float]] | None = None,
        rows: int = 0,
    ) -> list[int]:
        """How many of its drafts in hand each request verifies in this step. confidences: log-probabilities
        that the drafter gave to them. rows: other rows of the step, pieces of prompts: their cost is not the
        drafts', but where on the cost curve the step stands is theirs."""
        n, out = len(requests), list(in_hand)
        probing, self._probing = self._probing, None
        if probing is not None:
            self._probed = True
            if self._plain >= self._plain_price > 0.0:
                probing = None  # a plain step goes first: where probes are cheap one runs all the time
        elif confidences is None and not rows and n == self._planned_for and self._plain < self._plain_price:
            return out  # as proposed, for the same batch
        base = Base(n, float(n))
        chains: list[Sequence[float]] = []
        ours = []
        trying = self.acceptance.judged < _TRIED_FIRST
        for i, (r, drafts) in enumerate(zip(requests, in_hand, strict=True)):
            r.bins = ()
            if drafts == 0:
                continue
            if confidences is not None:
                r.bins = list(map(confidence_bin, confidences[i]))
            if trying or r.fixed is not None or r is probing:
                self._pin(r, drafts, base)
            else:
                ours.append(i)
                chains.append(
                    self.acceptance.curve(r.level).survival[:drafts]
                    if confidences is None
                    else self.acceptance.survival(r)
                )
        if not ours:
            return out
        total = sum(map(len, chains))
        at = base.rows + rows
        target = self.costs.target.upto(at + total)
        if (
            self._plan
            and target[at + total] - target[at] < _CHEAP * total * self._plan.seconds / self._plan.tokens
        ):
            kept = list(map(len, chains))
        else:
            alone = target[base.rows] - target[at]
            other = self.costs.fixed + (self._plan.drafting if self._plan else 0.0) + alone
            kept = likeliest(chains, at, base.tokens, other, target)
        if self._plain_probe_due(sum(kept), base.rows):
            kept = [0] * len(ours)
        for i, m in zip(ours, kept, strict=True):
            out[i] = m
        return out

    def _pin(self, r: DraftState, drafts: int, base: Base) -> None:
        """Takes up drafts that are made and verified whatever they bring."""
        base.rows += drafts
        base.tokens += sum(self.acceptance.curve(r.level).survival[:drafts])
        base.drafting += [0] * (drafts - len(base.drafting))
        for j in range(drafts):
            base.drafting[j] += 1

    # --- probing ----------------------------------------------------------------------------

    def _probe_deeper(
        self, requests: Sequence[DraftState], owed: Sequence[int], depths: list[int], plan: Allocation
    ) -> None:
        """Perhaps gives one request a draft more. Where nobody drafts, catching up is what makes that dear:
        mostly it is the one that owes least, a new one or the one before; else all have their turn."""
        turn = self._turn // _TURNS if any(owed) else self._turn
        i = turn % len(requests) if turn * _TURNS == self._turn or not any(owed) else owed.index(min(owed))
        r, depth = requests[i], depths[i]
        rows = len(requests) + sum(depths)
        price = self.costs.target(rows + 1) - self.costs.target(rows)
        if depth:
            deeper = sum(d > depth for d in depths)
            price += self.costs.draft(deeper + 1) - self.costs.draft(deeper)
        else:
            extended = int(self._committed * sum(d > 0 for d in depths))
            price += self.costs.extend(extended + max(1, r.owed)) - self.costs.extend(extended)
        if r.fixed is not None or depth >= self.most or price > _PURSE * plan.seconds:
            self._turn += 1
        elif self._deeper >= price:
            self._turn += 1
            self._deeper -= price
            depths[i] += 1
            self._probing = r

    def _plain_probe_due(self, kept: int, rows: int) -> bool:
        plan = self._plan
        if plan is None or not kept or plan.tokens <= rows:
            return False
        saved = self.costs.target(rows + kept) - self.costs.target(rows)
        self._plain_price = max(0.0, (plan.tokens - rows) * plan.seconds / plan.tokens - saved)
        if self._plain < self._plain_price:
            return False
        self._plain -= self._plain_price
        self._probed = True
        return True

    # --- learning ---------------------------------------------------------------------------

    def observe(
        self,
        requests: Sequence[DraftState],
        verified: Sequence[int],
        accepted: Sequence[int],
        work: StepWork,
        times: StepTimes,
    ) -> None:
        """What a step came to: drafts verified and accepted of every request that decoded in it, what ran and
        how long it took."""
        whole = times.whole
        self._deeper = min(_PURSE * whole, self._deeper + _DEEPER_SHARE * whole)
        self._plain = min(_PURSE * whole, self._plain + _PLAIN_SHARE * whole)
        self._thought += _THINK_SHARE * whole
        trying = self.acceptance.judged < _TRIED_FIRST
        allowed = trying or self._thought >= 0.0
        if not allowed and not self._probed:
            return
        self._thought = 0.0 if trying else min(0.0, self._thought) - _THINK - _THINK_EACH * len(requests)
        # News of a probe waits for the next plan: a plan may make a probe, and they would never end.
        self._due, self._probed = self._due or allowed, False
        self.costs.observe(work, times)
        if drafting := len(verified) - verified.count(0):
            self._committed += _COMMITTED_GAIN * (1.0 + sum(accepted) / drafting - self._committed)
        self.acceptance.observe(requests, verified, accepted)
