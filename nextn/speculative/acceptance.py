"""How likely a draft is to be accepted, learnt from every draft that was verified. Pure.

A chain's draft at depth j + 1 is only judged if the one at depth j was right, so what is learnt are
conditional rates. They are a sum of effects on the log-odds scale, as in a test with harder and easier
questions:

    P(depth j of request i holds | depth j - 1 held) = sigmoid(depth[j] + ability[i] (+ confidence[bin]))

`depth` is shared, so a new request starts from the engine-wide rates and one request's news is told to all;
`ability` is the request's own, drawn towards 0; one number instead of one a depth, so that it is known after
a few steps. `confidence` says what a draft's own log-probability adds to that: by bin, as observed, so a
drafter that is sure of itself and wrong is found out. Each effect is followed by a scalar Kalman filter: what
has not been observed for long is less certain and moves faster when it is.

Abilities are rounded to levels of a quarter: requests of a level share one computed curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nextn.draft import MOST_DEPTH

# Acceptance at depth 1, 2, ... assumed before anything is known.
PRIOR = (0.75, 0.7, 0.65, 0.62, 0.6, 0.58, 0.56, 0.55)

_MOST_ABILITY, _LEVELS_PER_UNIT = 3.0, 4
LEVELS = int(2 * _MOST_ABILITY * _LEVELS_PER_UNIT) + 1
_ABILITY_VARIANCE, _ABILITY_DRIFT = 0.3, 0.001
_ABILITY_KEPT = 0.999  # of the ability, a step: it is drawn towards 0
_DEPTH_VARIANCE, _DEPTH_DRIFT, _MOST_DEPTH_VARIANCE = 1.0, 0.0005, 0.6
_MOST_DEPTH_EFFECT = 5.0
# Depths that were not verified go along with the deepest one that was, reached or not. (With the deepest one
# that was reached they would sink without end: that is where chains break.)
_FOLLOW = 0.7
_REFRESH = 0.02  # a change of the shared rates, in log-odds, that makes the curves worth computing anew
_BINS, _BINS_PER_ROOT = 24, 8.0
_BIN_VARIANCE, _BIN_DRIFT, _MOST_BIN_EFFECT = 1.0, 0.0001, 4.0
_GRID = 16  # the sigmoid's table: points in a unit, up to the largest sum of effects
_HALF = int(_GRID * (_MOST_DEPTH_EFFECT + _MOST_ABILITY + _MOST_BIN_EFFECT + 1))
_SIGMOID = [1.0 / (1.0 + math.exp(-i / _GRID)) for i in range(-_HALF, _HALF + 1)]


def logit(p: float) -> float:
    return math.log(p / (1.0 - p))


def confidence_bin(logprob: float) -> int:
    """Finer near certainty: by the root of the negative log-probability."""
    return int(min(_BINS - 1.0, _BINS_PER_ROOT * math.sqrt(max(0.0, -logprob))))


class RequestAcceptance:
    """What is known of one request. `bins`: of the confidences of the drafts that it has in hand, if told."""

    __slots__ = ("ability", "bins", "level", "variance")

    def __init__(self) -> None:
        self.ability, self.variance = 0.0, _ABILITY_VARIANCE
        self.level = int(_MOST_ABILITY * _LEVELS_PER_UNIT)
        self.bins: Sequence[int] = ()


class Curve:
    """The rates of requests of one level. survival[j]: that a chain's drafts 1 .. j + 1 all hold.
    missed[a], info[a]: sums over the first a depths of 1 - p and of p (1 - p)."""

    __slots__ = ("info", "log_odds", "missed", "rates", "survival")

    def __init__(self, depth: Sequence[float], ability: float) -> None:
        self.log_odds = [d + ability for d in depth]
        self.rates = [_sigmoid(x) for x in self.log_odds]
        self.survival: list[float] = []
        self.missed, self.info = [0.0], [0.0]
        chain = 1.0
        for p in self.rates:
            chain *= p
            self.survival.append(chain)
            self.missed.append(self.missed[-1] + 1.0 - p)
            self.info.append(self.info[-1] + p * (1.0 - p))


class AcceptanceModel:
    def __init__(self, prior: Sequence[float] = PRIOR, most: int = MOST_DEPTH) -> None:
        assert len(prior) >= most
        self.most = most
        self.depth = [logit(p) for p in prior[:most]]
        self._variance = [_DEPTH_VARIANCE] * most
        self._bins = [0.0] * _BINS
        self._bin_variance = [_BIN_VARIANCE] * _BINS
        self._curves: list[Curve | None] = []
        self.judged = 0  # drafts that were verified, at depth 1
        self._forget()

    def _forget(self) -> None:
        self._curves = [None] * LEVELS
        self._moved = 0.0

    def curve(self, level: int) -> Curve:
        curve = self._curves[level]
        if curve is None:
            curve = Curve(self.depth, level / _LEVELS_PER_UNIT - _MOST_ABILITY)
            self._curves[level] = curve
        return curve

    def survival(self, request: RequestAcceptance) -> list[float]:
        """Of the drafts in hand, by their confidences: that the chain holds up to each."""
        log_odds, effect, sigmoid = self.curve(request.level).log_odds, self._bins, _SIGMOID
        out, chain = [], 1.0
        for x, b in zip(log_odds, request.bins, strict=False):
            chain *= sigmoid[int(_GRID * (x + effect[b]) + _HALF + 0.5)]
            out.append(chain)
        return out

    def observe(
        self,
        requests: Sequence[RequestAcceptance],
        verified: Sequence[int],
        accepted: Sequence[int],
    ) -> None:
        """One step's outcome: of each request's drafts so many were verified, so many leading ones held."""
        most, variance = self.most, self._variance
        score, info = [0.0] * most, [0.0] * most
        deepest = 0
        for r, v, a in zip(requests, verified, accepted, strict=True):
            if v == 0:
                r.variance = min(_ABILITY_VARIANCE, r.variance + _ABILITY_DRIFT)
                continue
            v, a = min(v, most), min(a, most)
            curve = self._curves[r.level] or self.curve(r.level)
            rates = curve.rates
            judged = a + 1 if a < v else v
            for j in range(a):
                p = rates[j]
                score[j] += 1.0 - p
                info[j] += p - p * p
            surprise = curve.missed[a]
            if a < v:
                p = rates[a]
                score[a] -= p
                info[a] += p - p * p
                surprise -= p
            deepest = max(deepest, v)
            self.judged += 1
            if r.bins:
                self._learn_bins(curve.log_odds, r.bins, judged, a)
            gain = r.variance / (1.0 + r.variance * curve.info[judged])
            r.variance = min(_ABILITY_VARIANCE, gain + _ABILITY_DRIFT)
            r.ability = min(_MOST_ABILITY, max(-_MOST_ABILITY, _ABILITY_KEPT * r.ability + gain * surprise))
            r.level = int((r.ability + _MOST_ABILITY) * _LEVELS_PER_UNIT + 0.5)
        self._learn_depths(score, info, deepest, variance)

    def _learn_depths(
        self, score: list[float], info: list[float], deepest: int, variance: list[float]
    ) -> None:
        change = 0.0
        for j in range(self.most):
            if j < deepest:
                gain = variance[j] / (1.0 + variance[j] * info[j])
                variance[j] = gain
                change = gain * score[j]
            elif j == deepest:
                change *= _FOLLOW
            if deepest:
                self.depth[j] = min(_MOST_DEPTH_EFFECT, max(-_MOST_DEPTH_EFFECT, self.depth[j] + change))
                self._moved += abs(change)
            variance[j] = min(_MOST_DEPTH_VARIANCE, variance[j] + _DEPTH_DRIFT)
        if self._moved > _REFRESH:
            self._forget()

    def _learn_bins(self, log_odds: Sequence[float], bins: Sequence[int], judged: int, accepted: int) -> None:
        effect, variance = self._bins, self._bin_variance
        for j, b in zip(range(judged), bins, strict=False):
            p = _sigmoid(log_odds[j] + effect[b])
            gain = variance[b] / (1.0 + variance[b] * p * (1.0 - p))
            variance[b] = gain + _BIN_DRIFT
            moved = effect[b] + gain * ((j < accepted) - p)
            effect[b] = min(_MOST_BIN_EFFECT, max(-_MOST_BIN_EFFECT, moved))


def _sigmoid(x: float) -> float:
    return _SIGMOID[int(_GRID * x + _HALF + 0.5)]
