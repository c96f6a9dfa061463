"""How many tokens drafts bring and which of them are worth their cost. Pure.

Two ways to say how deep a draft goes, with one interface:

- `ByConfidence`: chains that end guess by guess (`nextn.gate`). How often a guess holds follows from its
  confidence, counted by bin as drafts are verified; the depth adds nothing to that.
- `ByDepth`: every draft is `num_steps` deep: trees, n-grams, backends without the gate.

`plan` returns the setting with the most tokens per second for n requests by the costs given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nextn.draft import Draft, Shape
from nextn.gate import Gate
from nextn.speculative.depth.cost import StepCost

# Rates assumed at first, measured with nextn-tiny, and how many guesses they count as. Old guesses fade.
BIN_RATES = (0.45, 0.6, 0.7, 0.75, 0.85, 0.92, 0.96, 0.98, 0.99)
BIN_SHARES = (0.12, 0.1, 0.09, 0.08, 0.13, 0.11, 0.15, 0.09, 0.13)
DEPTH_RATE, PRIOR_GUESSES, REMEMBERED = 0.65, 20.0, 4000.0
SAMPLES = 64  # chains by which the expectation over chains is computed
NOTED = 128  # drafts looked at between two plans: the others would cost time and teach little


class Setting(NamedTuple):
    """num_steps: the deepest that a draft may go where nothing else ends it. tokens: expected of a request and step. extra: seconds that
    drafts add to the step."""

    num_steps: int
    gate: Gate | None
    tokens: float
    extra: float


class Worth(Protocol):
    def note(self, draft: Draft, accepted: int) -> None:
        """A draft was verified; so many of its nodes, from the root on, held."""

    def plan(self, n: int, cost: StepCost, base: float, factor: float) -> Setting:
        """base: seconds of the step without drafts. factor: by which drafts cost more than `cost` says."""


class _Rates:
    """Of guesses, by class: how often they hold, and how often each class comes up."""

    def __init__(self, rates: Sequence[float], shares: Sequence[float]) -> None:
        self.made = PRIOR_GUESSES * np.array(shares) * len(shares)
        self.seen = np.full(len(rates), PRIOR_GUESSES)
        self.held = self.seen * np.array(rates)

    def add(self, made: Sequence[int], verified: int, accepted: int) -> None:
        for i, kind in enumerate(made):
            self.made[kind] += 1.0
            if i < verified and i <= accepted:
                self.seen[kind] += 1.0
                self.held[kind] += i < accepted
                if self.seen[kind] > REMEMBERED:
                    self.seen[kind] *= 0.5
                    self.held[kind] *= 0.5
        if self.made[0] > REMEMBERED or self.made[-1] > REMEMBERED:
            self.made *= 0.5

    def rates(self) -> np.ndarray:
        found: np.ndarray = np.clip(self.held / self.seen, 1e-3, 0.999)
        return found


class ByConfidence:
    def __init__(self, most: int) -> None:
        self.most = most
        self._rates = _Rates(BIN_RATES, BIN_SHARES)
        self._noted: list[tuple[bytes, int, int]] = []
        self._quantiles = np.random.default_rng(0).random((SAMPLES, most))

    def note(self, draft: Draft, accepted: int) -> None:
        if draft.bins and len(self._noted) < NOTED:
            self._noted.append((draft.bins, len(draft.tokens), accepted))

    def plan(self, n: int, cost: StepCost, base: float, factor: float) -> Setting:
        for each in self._noted:
            self._rates.add(*each)
        self._noted = []
        rates, made = self._rates.rates(), self._rates.made
        usual = float(made @ rates / made.sum())
        bins = np.searchsorted(np.cumsum(made / made.sum())[:-1], self._quantiles)
        holds = np.cumprod(rates[bins], axis=1)
        best = Setting(1, None, 1.0, base)
        rate, drafts = n / base, 1.0
        for _ in range(4):  # Dinkelbach's iteration: thresholds for a rate, the rate that they reach
            gate = self._gate(n, cost, factor, rate, drafts, rates.tolist(), usual)
            kept, opened = _through(gate, holds, n)
            tokens, drafts = 1.0 + float((holds * kept).sum(axis=1).mean()), float(kept.sum(axis=1).mean())
            extra = factor * _extra(n, cost, drafts, tokens, opened.mean(axis=0)[1:].tolist())
            ungated = max(1, round(float(opened.sum(axis=1).mean())))
            found = Setting(self.most, gate._replace(ungated=ungated), tokens, extra)
            speed = n * tokens / (base + extra)
            if best.gate is None or speed > n * best.tokens / (base + best.extra):
                best = found
            rate = max(speed, n / base)
        return best

    def _gate(
        self, n: int, cost: StepCost, factor: float, rate: float, drafts: float, rates: list[float], usual: float
    ) -> Gate:
        """rate: tokens per second that a second spent is to be worth."""
        row = factor * cost.verify(n + n * drafts, n) / n
        each = factor * cost.pass_row
        # A token that holds costs the drafter a row, too.
        worth = rate / max(0.3, 1.0 - rate * each)
        return Gate(rates, worth * row, usual, worth * (row + each), worth * factor * cost.pass_)


class ByDepth:
    def __init__(self, most: int, shape: Shape) -> None:
        self.most, self.shape = most, shape
        self._rates = _Rates((DEPTH_RATE,) * most, (1.0 / most,) * most)

    def note(self, draft: Draft, accepted: int) -> None:
        depth = min(draft.depth, self.most)
        self._rates.add(range(depth), depth, accepted)

    def plan(self, n: int, cost: StepCost, base: float, factor: float) -> Setting:
        best = None
        tokens, held = 1.0, 1.0
        for depth, rate in enumerate(self._rates.rates().tolist(), start=1):
            held *= rate
            tokens += held
            passes = [float(self.shape.topk)] * (depth - 1)
            extra = factor * _extra(n, cost, self.shape.size(depth), tokens, passes)
            if best is None or tokens / (base + extra) > best.tokens / (base + best.extra):
                best = Setting(depth, None, tokens, extra)
        assert best is not None
        return best


def _through(gate: Gate, holds: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Chains by the probability that all up to each guess holds -> which guesses are kept, and made, [S, depth]
    as 0 and 1, when n chains share a pass."""
    kept = np.zeros(holds.shape)
    made = np.zeros(holds.shape)
    goes_on = np.ones(len(holds), dtype=bool)
    for depth in range(holds.shape[1]):
        made[:, depth] = goes_on
        enough = goes_on & (holds[:, depth] >= gate.keep)
        kept[:, depth] = enough
        gain = holds[:, depth] * gate.usual - gate.each
        goes_on = enough & (gain > 0.0)
        if n * gain[goes_on].sum() / len(holds) <= gate.passing:
            break
    return kept, made


def _extra(n: int, cost: StepCost, drafts: float, tokens: float, opened: Sequence[float]) -> float:
    """Seconds that n requests with so many drafts and tokens each add to a step. opened: rows of each further
    pass for one request; a pass that few want is not made in every step."""
    passes = 1.0 + math.fsum(min(1.0, n * share) for share in opened)
    return cost.verify(n, n * drafts) + cost.drafting(passes, n * (tokens + math.fsum(opened)))
