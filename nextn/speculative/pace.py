"""What the parts of a step take against what the cost table says of them, learnt while the engine serves.
Pure.

    seconds of a step = sum over its parts of factor x seconds by the table (`costs.StepCosts.parts`)

The table was made in two seconds at start-up; these machines are shared, and when a neighbour is busy what is
waited for grows and what is computed does not. Where drafts are gated, steps have other numbers of rows and
of draft passes all the time, so the factors show in how their times differ: a linear regression, as a
Kalman filter whose state are the factors. That all of them rise and fall together, from stretch to stretch,
is taken for usual and tells little; that one does and others do not, for rare.

Batches of about one size share factors (`batch_class`), as the table's curves are straight lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.measured import batch_class

PLAIN, ROWS, PROMPTS, EXTEND, PASS, PASS_ROWS, AT_ALL = range(7)
# AT_ALL: steps with drafts may take more, or less, than their parts say, by so much of what they would take
# without any. Between few drafts and many it makes no difference.
_FACTORS = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
# Standard deviations of a factor that the table alone speaks for, relative to the first one's; and of that
# one.
_APART = np.array([0.0, 0.6, 0.6, 0.6, 0.8, 0.8, 0.25])
_WHOLE = 1.0
_WANDER = 0.006  # what a stretch of steps adds to that, of each alone
_FORGOTTEN = 1e-3  # share of what is known that a stretch takes away
# Moving averages of how much steps miss what is expected: each beside its stretch, and whole stretches.
_NOISE_GAIN, _FIRST_NOISE, _LEAST_NOISE = 0.05, 0.15, 0.02
_FAR = 0.5  # that a stretch misses what was expected by, from which on it is another machine
_DRIFT_GAIN, _FIRST_DRIFT, _LEAST_DRIFT, _MOST_DRIFT = 0.05, 0.1, 0.01, 0.3
_OUTLIER = 3.0  # usual errors, up to which one counts
_ALIKE = 2.0  # neighbouring steps err alike: as if there were so many times fewer of them
_LEAST, _MOST = 0.05, 20.0  # of a factor, relative to the first one's
_LEAST_AT_ALL, _MOST_AT_ALL = -0.5, 2.0


def _unknown(factors: np.ndarray) -> np.ndarray:
    return _WHOLE**2 * np.outer(factors, factors) + np.diag((_APART * factors[PLAIN]) ** 2)


class _Known:
    def __init__(self, factors: np.ndarray) -> None:
        self.factors = factors.copy()
        self.covariance = _unknown(factors)

    def rescale(self, whole: float) -> None:
        """The machine as a whole is so many times slower: what is known of its parts is relative to that."""
        self.factors *= whole
        self.covariance *= whole * whole


class Pace:
    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self._known: dict[int, _Known] = {}
        self._noise, self._drift = _FIRST_NOISE, _FIRST_DRIFT

    def note(
        self, requests: int, works: Sequence[StepWork], seconds: Sequence[float], like_before: bool
    ) -> None:
        """A stretch of steps with about so many requests: what each one ran, and its time. like_before: with
        drafts, or without, as the stretch before."""
        known = self._of(requests)
        table = self.parts(works)
        missed = np.array(seconds) / (table @ known.factors) - 1.0
        middle = _median(missed)
        if abs(middle) > _FAR:
            known.rescale(1.0 + middle)
            missed = (missed - middle) / (1.0 + middle)
            middle = 0.0
        usual = known.factors
        shares = table / (table @ usual)[:, None]
        apart = missed - middle
        most = _OUTLIER * self._noise
        # 1.48: from a median to a standard deviation.
        self._noise += _NOISE_GAIN * (1.48 * _median(np.abs(apart)) - self._noise)
        self._noise = max(self._noise, _LEAST_NOISE)
        missed = middle + np.minimum(np.maximum(apart, -most), most)

        covariance = known.covariance
        covariance = covariance + _FORGOTTEN * (_unknown(usual) - covariance)
        if like_before:
            self._drift += _DRIFT_GAIN * (1.25 * min(abs(middle), _MOST_DRIFT) - self._drift)
            self._drift = max(self._drift, _LEAST_DRIFT)
        drift = self._drift * usual
        covariance += np.outer(drift, drift) + np.eye(len(usual)) * (_WANDER * usual[PLAIN]) ** 2
        # As information, there being fewer factors than steps.
        noise = _ALIKE * self._noise**2
        known_by = np.eye(len(usual)) + covariance @ (shares.T @ shares) / noise
        covariance = np.linalg.solve(known_by, covariance)
        known.covariance = (covariance + covariance.T) / 2
        found = usual + known.covariance @ (shares.T @ missed) / noise
        plain = max(found[PLAIN], 0.1 * usual[PLAIN])
        at_all = min(_MOST_AT_ALL * plain, max(_LEAST_AT_ALL * plain, found[AT_ALL]))
        known.factors = np.minimum(np.maximum(found, _LEAST * plain), _MOST * plain)
        known.factors[PLAIN], known.factors[AT_ALL] = plain, at_all

    def factors(self, requests: int) -> list[float]:
        factors: list[float] = self._of(requests).factors.tolist()
        return factors

    def doubt(self, requests: int, part: int) -> float:
        """The standard deviation of a part's factor over the first one's."""
        known = self._of(requests)
        weights = np.zeros(len(known.factors))
        weights[part], weights[PLAIN] = 1.0, -known.factors[part] / known.factors[PLAIN]
        return math.sqrt(max(0.0, float(weights @ known.covariance @ weights))) / float(known.factors[PLAIN])

    def seconds(self, requests: int, parts: np.ndarray) -> float:
        """That a step of these parts is expected to take."""
        return float(self._of(requests).factors @ parts)

    def spread(self, requests: int, one: np.ndarray, other: np.ndarray) -> float:
        """How uncertain the ratio of two steps' times is: the standard deviation of its logarithm."""
        known = self._of(requests)
        weights = one / (one @ known.factors) - other / (other @ known.factors)
        return math.sqrt(max(0.0, float(weights @ known.covariance @ weights)))

    def parts(self, works: Sequence[StepWork]) -> np.ndarray:
        """Seconds of steps' parts by the table."""
        parts = np.empty((len(works), len(_FACTORS)))
        parts[:, :AT_ALL] = self.costs.parts(works)
        parts[:, AT_ALL] = parts[:, PLAIN] * [w.drafts > 0 for w in works]
        return parts

    def _of(self, requests: int) -> _Known:
        """A batch size that was never seen starts from the nearest one that was."""
        batch = batch_class(requests)
        known = self._known.get(batch)
        if known is None:
            nearest = min(self._known, key=lambda b: (abs(b - batch), b), default=None)
            factors = _FACTORS if nearest is None else self._known[nearest].factors
            known = self._known[batch] = _Known(factors)
        return known


def _median(values: np.ndarray) -> float:
    """Of few, np.median takes ten times as long."""
    ordered: list[float] = sorted(values.tolist())
    return ordered[len(ordered) // 2]
