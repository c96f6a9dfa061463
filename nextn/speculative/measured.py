"""How far steps are from what the cost table says of them, by batch size and by drafts a request. Pure.

The table (`costs`) knows the parts of a step that run on the device. What else drafts cost, and what is
different from the moment when it was measured, shows in whole steps alone: by how much each setting misses
its prediction. These machines are shared, and all settings are slow when a neighbour is busy; so only what
follows directly on something else is compared, one stretch of steps with the stretch before it.

Known of each setting is the logarithm of real seconds over predicted ones, up to a constant that is common
to all of a batch size. It is followed by a Kalman filter, in which a setting differs from its neighbour by a
random step, so that what is learnt of one is news of those beside it. What has not been compared for long is
uncertain again, and `spread` says by how much, so that it can be tried.
"""

from __future__ import annotations

import math

import numpy as np

from nextn.draft import MOST_DEPTH

# Standard deviations of the steps from setting to setting before anything is known: to drafts at all, and to
# one more. A table that was made of parts is right to so much.
_DRAFTS_AT_ALL, _ONE_MORE = 0.4, 0.15
_FORGOTTEN = 1e-4  # share of what is known that a stretch takes away
_NOISE_GAIN, _FIRST_NOISE, _LEAST_NOISE = 0.1, 0.1, 0.01
_OUTLIER = 4.0  # errors count up to so many times the usual one

_STEPS = np.array([0.0, _DRAFTS_AT_ALL**2] + [_ONE_MORE**2] * (MOST_DEPTH - 1)).cumsum()
_UNKNOWN = np.minimum.outer(_STEPS, _STEPS)  # covariance of a random walk


def batch_class(requests: int) -> int:
    """Batches of a class share what is measured: 1, 2, 3-5, 6-11, 12-22, 23-45, ... Loads are often powers of
    two, and where requests end all the time somewhat fewer decode: these are one class."""
    return round(math.log2(max(1, requests)))


class _Known:
    """One batch size's settings: 0, 1, ... MOST_DEPTH drafts a request."""

    def __init__(self, offsets: np.ndarray, covariance: np.ndarray) -> None:
        self.offsets, self.covariance = offsets, covariance.copy()
        self.before: tuple[float, float] | None = None  # (drafts a request, log ratio) of the last stretch
        self.notes = 0


class Measured:
    def __init__(self, doubt: float = 1.0) -> None:
        """doubt: how much less the table may be wrong than one that was made of parts."""
        self._unknown = doubt * doubt * _UNKNOWN
        self._known: dict[int, _Known] = {}
        self._noise = _FIRST_NOISE  # usual difference of two stretches of one setting

    def note(self, batch: int, drafts: float, ratio: float) -> None:
        """A stretch of steps, right after the one that was noted last, took `ratio` times the predicted time
        with so many drafts a request on average. batch: see `batch_class`."""
        y = math.log(ratio)
        known = self.of(batch)
        known.notes += 1
        before, known.before = known.before, (drafts, y)
        for other in self._known.values():
            if other is not known:
                other.before = None  # what comes next there does not follow on it
        known.covariance += _FORGOTTEN * (self._unknown - known.covariance)
        if before is None:
            return
        weights = _weights(drafts) - _weights(before[0])
        surprise = y - before[1] - float(weights @ known.offsets)
        gain = known.covariance @ weights
        spread = float(weights @ gain)
        if spread < 1e-9:  # the same setting twice
            most = _OUTLIER * self._noise  # 1.25: from a mean to a standard deviation
            self._noise += _NOISE_GAIN * (1.25 * min(abs(surprise), most) - self._noise)
            self._noise = max(self._noise, _LEAST_NOISE)
            return
        total = spread + self._noise**2
        most = _OUTLIER * math.sqrt(total)
        known.offsets += gain * (min(most, max(-most, surprise)) / total)
        known.covariance -= np.outer(gain, gain) / total

    def interrupt(self) -> None:
        """What is noted next does not follow on anything."""
        for known in self._known.values():
            known.before = None

    def of(self, batch: int) -> _Known:
        """A batch size that was never seen starts from the nearest one that was."""
        known = self._known.get(batch)
        if known is None:
            nearest = min(self._known, key=lambda b: (abs(b - batch), b), default=None)
            offsets = np.zeros(MOST_DEPTH + 1) if nearest is None else self._known[nearest].offsets.copy()
            known = self._known[batch] = _Known(offsets, self._unknown)
        return known

    def fresh(self, batch: int) -> bool:
        """Was nothing noted of it yet?"""
        return not self.of(batch).notes

    def factors(self, batch: int) -> list[float]:
        """Real over predicted seconds for 0, 1, ... drafts a request, up to a common factor."""
        factors: list[float] = np.exp(self.of(batch).offsets).tolist()
        return factors

    def spread(self, batch: int, one: float, other: float) -> float:
        """How uncertain the ratio of two settings' factors is: the standard deviation of its logarithm."""
        weights = _weights(one) - _weights(other)
        return math.sqrt(max(0.0, float(weights @ self.of(batch).covariance @ weights)))


def between(factors: list[float], drafts: float) -> float:
    """The factor for a number of drafts that is not whole."""
    d = int(drafts)
    if d >= MOST_DEPTH:
        return factors[MOST_DEPTH]
    return factors[d] + (drafts - d) * (factors[d + 1] - factors[d])


def _weights(drafts: float) -> np.ndarray:
    """[MOST_DEPTH + 1]: of the settings, in one that lies between two of them."""
    weights = np.zeros(MOST_DEPTH + 1)
    d = min(int(drafts), MOST_DEPTH)
    weights[d] = 1.0
    if d < MOST_DEPTH:
        weights[d : d + 2] = 1.0 - (drafts - d), drafts - d
    return weights
