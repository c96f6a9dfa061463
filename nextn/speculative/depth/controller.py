"""The draft-length controller: whether requests draft, and how deep. Deterministic; no text depends on it.

Requests draft if that makes more tokens per second. This depends on step costs (`cost`), the value of drafts
(`value`) and, for each batch size, a factor by which drafts cost more than `cost` says. Trials measure it:
steps of the other kind, 1 % of the time. Other load slows both kinds, so only their ratio counts."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from statistics import fmean, median

from nextn.cutoff import Cutoff
from nextn.draft import DRAFT_WINDOW, Draft
from nextn.drafting_state import DraftingState
from nextn.speculative.depth.cost import Factors, StepCost
from nextn.speculative.depth.value import REMEMBERED, DraftValue
from nextn.speculative.work import StepWork

# Share of the time for trials (2 s of it in advance); and the least gain that changes the decision.
MARGIN = 0.01
TRIAL_SECONDS, TRIAL_STEPS = 0.01, (4, 16)  # per trial; half of it first, uncounted, to warm caches
PLAN_SECONDS, SPREAD_SECONDS = 0.2, 3.0  # between plans (0.3 to 2 ms each); average over bursts of prompts
TRIALS = 3  # at least, for each batch size: one may have been disturbed
UNKNOWN = 0.5  # initial standard deviation of a factor: costs may be off by a factor of two
RECHECK = 0.002  # share of time for trials that look needless: other load on the machine may begin or end
EXPLORE = 200  # steps; one of them keeps every guess, because unverified guesses teach nothing


class DepthController:
    """drafting: do requests without their own depth draft in the next step? state: what is shown to users."""

    def __init__(self, cost: StepCost, value: DraftValue, factors: Factors, page: int) -> None:
        """factors: from trials of an earlier run, by batch size as a power of two. page: tokens per page."""
        row = max(cost.row, 0.2 * (cost.row + cost.request))  # a cost of 0 times a factor stays 0
        self.cost = replace(cost, row=row, a_pass=max(0.02 * cost.rows(1), cost.a_pass))
        self.value, self._catch_up = value, max(DRAFT_WINDOW // 4, page)  # steps before a trial; each costs
        self._size = self._other_steps = 0  # log2 of the batch size; consecutive steps of another size
        self.factors = {size: list(found) for size, found in factors.items()}
        self.drafting = self._decision = True  # in the next step; apart from trials
        self._log: deque[tuple[bool, float, StepWork]] = deque(maxlen=4 * TRIAL_STEPS[1])
        self._trial: list[bool] = []  # for each step left of the trial: whether it drafts
        self._skip, self._settle = 1, 1  # uncounted steps after a switch: left, in total
        # Seconds since the last plan and trial, of a step; positions of a request; prompt rows per second.
        self._since = self._since_trial = self._step = self._context = self._prompts = 0.0
        self._held = self._prompt = 0  # guesses that held in this step; prompt rows since the last plan
        self._tried = self._changed = False  # was there a trial; did the last plan change `_decision`
        self._steps, self._budget = 0, 2.0 * MARGIN
        # Sums [actual, expected, count]: tokens of drafts, and seconds by `cost` that drafts added.
        self._tokens, self._extra = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        self._plan(1)

    @property
    def num_steps(self) -> int:
        return self._setting.num_steps

    @property
    def keeping(self) -> bool:
        """Whether positions that the draft layer does not see in the next step are kept for later."""
        return self._decision or True in self._trial

    @property
    def cutoff(self) -> Cutoff | None:
        cutoff = self._setting.cutoff
        return cutoff._replace(row_cost=0.0) if cutoff and self._steps % EXPLORE == 0 else cutoff

    def note(self, draft: Draft, accepted: int) -> None:
        """A draft that the controller asked for was verified; its first `accepted` guesses held."""
        self.value.note(draft, accepted)
        self._held += accepted

    def stepped(
        self, work: StepWork, seconds: float | None, own: bool = True, drafting: bool | None = None
    ) -> None:
        """A step has run. seconds: since the end of the last one; None: the engine was idle in between. own:
        no request in it set a depth. drafting: the value when the step was planned; None: unchanged since."""
        self._prompt += work.rows - (n := work.requests) - work.drafts
        if not n:
            return
        if seconds is not None:
            self._since, self._steps = self._since + seconds, self._steps + 1
            if self.drafting or self._trial or self._skip:
                self._note_step(work, seconds, own, self.drafting if drafting is None else drafting)
            elif own and work.only_decodes:  # most steps without drafts need only this
                self._log.append((False, seconds, work))
        self._held = 0
        distance = 0.0 if n == self.state.requests else abs(math.log2(n) - self._size)
        self._other_steps = self._other_steps + 1 if distance > 0.75 else 0  # loads vary around powers of two
        other = distance > 1.75 or self._other_steps > TRIAL_STEPS[1]  # shorter: texts end and begin
        if other:
            self._size, self._trial, self._other_steps, self._skip = round(math.log2(n)), [], 0, 1
            self._log.clear()
        if other or (self._since >= PLAN_SECONDS and not (self._trial or self._other_steps)):
            self._plan(n, work.only_decodes)  # a trial during prompts would draft for them too

    def _note_step(self, work: StepWork, seconds: float, own: bool, drafting: bool) -> None:
        if own and (self._decision or drafting or not self.keeping) and not self._skip and work.only_decodes:
            self._log.append((drafting, seconds, work))
            if drafting:
                if self._decision:  # in a trial the drafter has seen few positions and guesses worse
                    _add(self._tokens, self._held, (n := work.requests) * (self._setting.tokens - 1.0), n)
                _add(self._extra, self.cost.extra(work), self._setting.extra / self._mean)
                if not self._decision:  # time beyond a trial's estimated price is charged too
                    self._budget -= max(0.0, seconds - self._step - self._setting.extra)
        self._skip = max(0, self._skip - 1)
        if self._trial:
            self._trial.pop(0)
            self._switch(self._trial[0] if self._trial else self._decision)
            if not self._trial:
                self._learn()

    def _switch(self, drafting: bool) -> None:
        if drafting != self.drafting:
            self._skip, self.drafting = self._settle, drafting

    def _learn(self) -> None:
        """level: time of steps without drafts, relative to `cost`. Steps with drafts then give the factor."""
        plain = [s / self.cost.base(w) for d, s, w in self._log if not d]
        some = [(s, self.cost.base(w), m) for d, s, w in self._log if d and (m := self.cost.extra(w)) > 0.0]
        if min(len(plain), len(some)) >= TRIAL_STEPS[0]:
            level = median(plain)
            found = median((s / level - without) / extra for s, without, extra in some)
            self.factors[self._size] = [*self.factors[self._size], max(0.1, found)][-3 * TRIALS :]
            self._since_trial, self._tried, self._changed = 0.0, True, False

    def _factor(self) -> tuple[float, float]:
        """Mean and standard deviation. A busy machine can falsify any single trial, so the median of the last
        ones is used. The value assumed before the first trial is one of them at first."""
        near = min(self.factors, key=lambda other: abs(other - self._size), default=None)
        known = self.factors.setdefault(self._size, [1.0 if near is None else median(self.factors[near])])
        mean, count = median(known), len(known)
        spread = 1.5 * median(abs(each - mean) for each in known) / math.sqrt(count)
        return mean, max(UNKNOWN / count**2, spread, 0.5 * abs(known[-1] - mean))

    def _plan(self, n: int, may_try: bool = False) -> None:
        if self._log:
            self._step = fmean(seconds for _, seconds, _ in self._log)
            self._context = fmean(work.context / work.requests for _, _, work in self._log)
        self._budget, self._since_trial = self._budget + MARGIN * self._since, self._since_trial + self._since
        if self._changed:  # no trial has this many steps of both kinds
            self._learn()
        self._mean, deviation = self._factor()
        kept = math.exp(-self._since / SPREAD_SECONDS)
        self._tokens = [each if self._decision else kept * each for each in self._tokens]  # texts change
        self._prompts = kept * self._prompts + self._prompt / SPREAD_SECONDS
        cost, self._since, self._prompt = self.cost.at(self._context), 0.0, 0
        base = cost.rows(n)
        self._mean += 0.5 * deviation  # the setting that looks best is often best by chance
        self._setting = setting = self.value.plan(n, cost.times(self._mean), base)
        tokens = 1.0 + _ratio(self._tokens) * (setting.tokens - 1.0)
        extra = _ratio(self._extra) * setting.extra
        prompts = 1.0 + self._prompts * self._mean * cost.prompt_row  # time of the drafter
        gain = max(0.001, round(tokens * base / (base + extra) / prompts, 3))  # rows may seem to cost nothing
        ahead, untried = math.log(gain), len(self.factors[self._size]) <= TRIALS
        doubt = extra / (base + extra) * deviation / self._mean
        self._changed = abs(ahead) > MARGIN and self._decision != (ahead > 0.0)
        self._decision ^= self._changed
        self._switch(self._decision)
        tried = round(self._since_trial, 1) if self._tried else None
        says = f"takes {1.0 + extra / base:.2f} x as long and commits {tokens:.2f} x as many tokens"
        self.state = DraftingState(self._decision, n, gain, f"a step with drafts {says}", tried)
        count = TRIAL_SECONDS / (self._step or 1.0)
        self._settle = round(min(TRIAL_STEPS[1], max(1.0, count / 2)))
        length = self._settle + round(min(TRIAL_STEPS[1], max(TRIAL_STEPS[0], count)))
        before = 0 if self._decision else self._catch_up
        lost = min(0.2 if untried else 1.0, max(MARGIN, abs(ahead)))  # each size is tried soon
        low_cost = cost.times(low_factor := min(self._mean, math.sqrt(self._mean)))
        price = lost * (length - self._settle) * self._step + low_cost.drafting(1, n * (before or length - 1))
        most = max(2.0 * MARGIN, 2 * TRIAL_STEPS[0] * self._step, price)  # limit; a load may be short
        self._budget = max(-most, min(most, self._budget))
        due = untried or abs(ahead) < 2.0 * doubt or price < RECHECK * self._since_trial
        if due and may_try and price <= self._budget and len(self._log) >= length:
            self._budget -= price
            if before:  # at a high cost few drafts are made, and noise hides their time
                self._mean = max(0.3, low_factor - 1.5 * deviation)
                self._setting = self.value.plan(n, cost.times(self._mean), base)
            self._trial = [False] * before + [not self._decision] * length + [self._decision] * length
            self._switch(False)


def _add(sums: list[float], came: float, expected: float, count: int = 1) -> None:
    share = 0.5 if sums[2] >= REMEMBERED else 1.0
    sums[:] = share * (sums[0] + came), share * (sums[1] + expected), share * (sums[2] + count)


def _ratio(sums: list[float]) -> float:
    came, expected, count = sums
    assumed = REMEMBERED / 80 * expected / count if expected else 1.0
    return (came + assumed) / (expected + assumed) if expected else 1.0
