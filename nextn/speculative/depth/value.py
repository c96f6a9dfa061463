"""Predicts how many tokens drafts bring, and which depth is worthwhile. Without I/O.

Guesses of a kind hold (are accepted) equally often, as verified drafts show. If a cutoff (`nextn.cutoff`)
ends chains, the kind is the confidence bin, at any depth; otherwise (trees, n-grams) the depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nextn.cutoff import Cutoff
from nextn.draft import Draft, Shape
from nextn.speculative.depth.cost import StepCost

# By confidence bin, measured with nextn-tiny: the rate at which guesses hold, and their share of all.
BIN_RATES = (0.45, 0.6, 0.7, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99)
BIN_SHARES = (0.12, 0.1, 0.09, 0.08, 0.13, 0.11, 0.15, 0.09, 0.13)
FIRST = 20.0  # weight of these values, in guesses of a kind
REMEMBERED = 4000.0  # guesses of a kind; then old ones count half, because texts change within minutes
CHAINS = 64  # chains for expectations (error 1 %); at most twice as many drafts are noted between plans


class Setting(NamedTuple):
    """num_steps: maximum depth. tokens: per request and step. extra: seconds that drafts add to a step."""

    num_steps: int
    cutoff: Cutoff | None
    tokens: float
    extra: float


class DraftValue:
    def __init__(self, num_steps: int, shape: Shape, cuts: bool, ends: bool = True) -> None:
        """num_steps: maximum depth. cuts: a cutoff keeps guesses by confidence. ends: it also ends passes."""
        self.num_steps, self.shape, self.cuts, self.ends = num_steps, shape, cuts, ends
        rates = BIN_RATES if cuts else (float(np.dot(BIN_RATES, BIN_SHARES)),) * num_steps
        self._made = FIRST * len(rates) * np.array(BIN_SHARES if cuts else (1.0 / num_steps,) * num_steps)
        self._seen = np.full(len(rates), FIRST)
        self._held = FIRST * np.array(rates)
        self._noted: list[tuple[Sequence[int], int, int]] = []
        self._draws = np.random.default_rng(0).random((CHAINS, num_steps))  # the same in every run

    def note(self, draft: Draft, accepted: int) -> None:
        """A draft was verified; its first `accepted` guesses, from the root on, held."""
        if len(self._noted) < 2 * CHAINS and (draft.bins or not self.cuts):
            depth = min(draft.depth, self.num_steps)
            self._noted.append((draft.bins if self.cuts else range(depth), depth, accepted))

    def plan(self, n: int, cost: StepCost, base: float) -> Setting:
        """The setting with the most tokens per second for n requests. base: seconds without drafts."""
        for made, verified, accepted in self._noted:
            for i, kind in enumerate(made):
                self._made[kind] += 1.0
                self._seen[kind] += i < verified and i <= accepted
                self._held[kind] += i < accepted
        self._noted = []
        old = np.where(self._seen > REMEMBERED, 0.5, 1.0)
        self._seen, self._held = old * self._seen, old * self._held
        self._made *= 0.5 if self._made.max() > REMEMBERED else 1.0
        rates = np.clip(self._held / self._seen, 1e-3, 0.999)
        options = self._by_confidence if self.cuts else self._by_num_steps
        return max(options(n, cost, base, rates), key=lambda s: s.tokens / (base + s.extra))

    def _by_num_steps(self, n: int, cost: StepCost, base: float, rates: np.ndarray) -> list[Setting]:
        found, tokens = [], 1.0
        for num_steps, held in enumerate(np.cumprod(rates).tolist(), start=1):
            tokens += held
            extra = _extra(n, cost, self.shape.size(num_steps), tokens, [self.shape.topk] * (num_steps - 1))
            found.append(Setting(num_steps, None, tokens, extra))
        return found

    def _by_confidence(self, n: int, cost: StepCost, base: float, rates: np.ndarray) -> list[Setting]:
        """Dinkelbach's iteration: a token rate gives thresholds, and these give the next token rate."""
        shares = self._made / self._made.sum()
        mean_rate = float(shares @ rates)
        holds = np.cumprod(rates[np.searchsorted(np.cumsum(shares)[:-1], self._draws)], axis=1)
        found, rate, drafts = list[Setting](), n / base, 1.0
        for num_steps in (self.num_steps,) * 4 if self.ends else range(1, self.num_steps + 1):
            row = cost.verify(n + n * drafts, n) / n
            price = rate / max(0.3, 1.0 - rate * cost.pass_row)  # each accepted token costs the drafter a row
            guess_cost = price * (row + cost.pass_row)
            cutoff = Cutoff(rates.tolist(), price * row, mean_rate, guess_cost, price * cost.a_pass)
            kept, made = _through(cutoff, chains := holds[:, :num_steps], n)
            made |= not self.ends
            drafts, tokens = float(kept.mean(0).sum()), 1.0 + float((chains * kept).mean(0).sum())
            extra = _extra(n, cost, drafts, tokens, made.mean(0)[1:].tolist())
            cutoff = cutoff._replace(num_steps=max(1, round(float(made.mean(0).sum()))))
            found.append(Setting(num_steps, cutoff, tokens, extra))
            before, rate = rate, max(n / base, n * tokens / (base + extra))
            if self.ends and rate == before:
                break
        return found


def _through(cutoff: Cutoff, holds: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """holds [S, depth]: probability that all guesses of a chain up to a depth hold. Returns which guesses are
    kept, and which are made, if n chains share a pass."""
    kept, made, going = np.zeros(holds.shape, bool), np.zeros(holds.shape, bool), np.ones(len(holds), bool)
    for depth, hold in enumerate(holds.T):
        made[:, depth] = going
        kept[:, depth] = going & (hold >= cutoff.row_cost)
        gain = hold * cutoff.mean_rate - cutoff.guess_cost
        going = kept[:, depth] & (gain > 0.0)
        if n * gain[going].sum() <= cutoff.pass_cost * len(holds):
            break
    return kept, made


def _extra(n: int, cost: StepCost, drafts: float, tokens: float, opened: Sequence[float]) -> float:
    """Seconds that n requests add to a step with `drafts` drafts and `tokens` tokens each. opened: rows of
    each further pass for one request. A pass that few want is not made in every step."""
    passes = 1.0 + math.fsum(min(1.0, n * share) for share in opened)
    return cost.verify(n, n * drafts) + cost.drafting(passes, n * (tokens + math.fsum(opened)))
