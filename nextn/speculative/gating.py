"""What `nextn.gate` lets through, planned: thresholds from costs, rates from what became of guesses. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.gate import Gate
from nextn.speculative.allocate import Planner
from nextn.speculative.leads import Leads

_AROUND = (1, 4)  # drafts, between which it is seen what one more costs
_OPEN_EVERY = (
    16  # plans, one that verifies whatever was drafted: what is never verified is never seen to hold
)
_MEAN_GAIN = 0.3  # of the moving average


class Gating:
    """used: does the executor gate drafts at all? Not all can. gate: for the steps to come."""

    def __init__(self) -> None:
        self.used = False
        self.leads = Leads()
        self.gate = Gate(self.leads.rates(), keep=0.0, usual=1.0, each=0.0, passing=0.0)
        self._credit = 0.0
        self._verified = 0  # since the last plan
        self._mean = 1.5  # drafts that are verified, of a request and step
        self._plans = 0

    def note(self, bins: Sequence[int], verified: int, accepted: int) -> tuple[int, int]:
        """A draft whose guesses fell into these bins: so many leading ones were verified, and so many held.
        Returns these two numbers as they are to be counted: a guess that was not worth verifying counts as
        held as often as its like, since not to count it would flatter the others."""
        self.used = True
        self.leads.note(bins, verified, accepted)
        self._verified += verified
        if not len(bins) > verified == accepted:
            return verified, accepted
        self._credit += self.gate.rates[bins[verified]]
        held = self._credit >= 0.5
        self._credit -= held
        return verified + 1, accepted + held

    def stretch(self, steps: int) -> float | None:
        """Drafts that were verified since the last plan, of a request and step, the product of both being
        `steps`. None: not one."""
        verified, self._verified = self._verified, 0
        if not verified or not steps:
            return None
        self._mean += _MEAN_GAIN * (verified / steps - self._mean)
        return verified / steps

    def plan(self, planner: Planner, most: int, committed: float) -> None:
        """Sets the gate: what a draft more costs each request, in tokens that the time would bring otherwise.
        committed: tokens of a step, for each request that drafts."""
        groups = len(planner.groups)
        if not groups:
            return
        mean, n, costs = self._mean, planner.requests, planner.costs
        few, many = (planner.of([min(d, most)] * groups) for d in _AROUND)
        draft = max(0.0, many.seconds - few.seconds) / max(1.0, many.mean - few.mean)
        now = max(few.seconds + (mean - few.mean) * draft, 0.5 * few.seconds)
        rows = round(n * (1 + mean))
        row = max(1e-9, (costs.target(rows + n) - costs.target(rows)) / n)
        one, every = costs.draft(1), costs.draft(n)
        each = (every - one) / (n - 1) if n > 1 else 0.0
        # Tokens for a second of one of these parts, which together come to `draft`.
        worth = draft / (n * row + every) * committed * n / now
        self._plans += 1
        self.leads.forget()
        self.gate = Gate(
            self.leads.rates(),
            keep=worth * row if self._plans % _OPEN_EVERY else 0.0,
            usual=self.leads.usual(),
            each=worth * (row + each),
            passing=worth * (one - each),
        )
