"""How likely a draft is to be accepted, learnt from every draft that was verified. Pure.

A chain's draft at depth j + 1 is only judged if the one at depth j was right, so what is learnt are
conditional rates. They are a sum of effects on the log-odds scale, as in a test with harder and easier
questions:

    P(depth j of request i holds | depth j - 1 held) = sigmoid(depth[j] + ability[i])

`depth` is shared, so a new request starts from the engine-wide rates and one request's news is told to all;
`ability` is the request's own, drawn towards 0; one number instead of one a depth, so that it is known after
a few steps. Each effect is followed by a scalar Kalman filter: what has not been observed for long is less
certain and moves faster when it is. Requests note what became of their drafts, and many steps' notes are
taken in at once.

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
_GRID = 16  # the sigmoid's table: points in a unit, up to the largest sum of effects
_HALF = int(_GRID * (_MOST_DEPTH_EFFECT + _MOST_ABILITY + 1))
_SIGMOID = [1.0 / (1.0 + math.exp(-i / _GRID)) for i in range(-_HALF, _HALF + 1)]


def logit(p: float) -> float:
    return math.log(p / (1.0 - p))


class RequestAcceptance:
    """What is known of one request. outcomes: (drafts verified, drafts accepted) -> steps, not yet learnt
    from."""

    __slots__ = ("ability", "level", "outcomes", "variance")

    def __init__(self) -> None:
        self.ability, self.variance = 0.0, _ABILITY_VARIANCE
        self.level = int(_MOST_ABILITY * _LEVELS_PER_UNIT)
        self.outcomes: dict[tuple[int, int], int] = {}

    def note(self, verified: int, accepted: int) -> None:
        """A step verified so many of its drafts, and so many leading ones held."""
        key = (verified, accepted)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1


class Curve:
    """The rates of requests of one level. survival[j]: that a chain's drafts 1 .. j + 1 all hold.
    missed[a], info[a]: sums over the first a depths of 1 - p and of p (1 - p)."""

    __slots__ = ("info", "missed", "rates", "survival")

    def __init__(self, depth: Sequence[float], ability: float) -> None:
        self.rates = [_sigmoid(d + ability) for d in depth]
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
        self.variance = [_DEPTH_VARIANCE] * most
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

    def observe(self, requests: Sequence[RequestAcceptance], steps: int = 1) -> None:
        """What the requests have noted since the last time, so many steps ago. It is taken from them."""
        most = self.most
        score, info = [0.0] * most, [0.0] * most
        deepest = 0
        for r in requests:
            if not r.outcomes:
                r.variance = min(_ABILITY_VARIANCE, r.variance + _ABILITY_DRIFT * steps)
                continue
            curve = self.curve(r.level)
            surprise = known = 0.0
            judged_steps = 0
            for (verified, accepted), count in r.outcomes.items():
                v, a = min(verified, most), min(accepted, most)
                for j in range(a):
                    score[j] += count * (1.0 - curve.rates[j])
                if a < v:
                    score[a] -= count * curve.rates[a]
                judged = min(a + 1, v)
                for j in range(judged):
                    info[j] += count * curve.rates[j] * (1.0 - curve.rates[j])
                surprise += count * (curve.missed[a] - (curve.rates[a] if a < v else 0.0))
                known += count * curve.info[judged]
                deepest = max(deepest, v)
                judged_steps += count
            r.outcomes = {}
            self.judged += judged_steps
            gain = r.variance / (1.0 + r.variance * known)
            r.variance = min(_ABILITY_VARIANCE, gain + _ABILITY_DRIFT * judged_steps)
            kept = _ABILITY_KEPT**judged_steps
            r.ability = min(_MOST_ABILITY, max(-_MOST_ABILITY, kept * r.ability + gain * surprise))
            r.level = int((r.ability + _MOST_ABILITY) * _LEVELS_PER_UNIT + 0.5)
        self._learn_depths(score, info, deepest, steps)

    def _learn_depths(self, score: list[float], info: list[float], deepest: int, steps: int) -> None:
        variance = self.variance
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
            variance[j] = min(_MOST_DEPTH_VARIANCE, variance[j] + _DEPTH_DRIFT * steps)
        if self._moved > _REFRESH:
            self._forget()


def _sigmoid(x: float) -> float:
    return _SIGMOID[int(_GRID * x + _HALF + 0.5)]
