"""Arrival times of a load's requests."""

from __future__ import annotations

import math

import numpy as np


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times of `count` requests: seconds from the start, ascending; the first is 0. `rate`:
    requests/s; inf: all at once. Raises ValueError if the rate is not positive.
    """
    if not rate > 0:
        raise ValueError(f"--request-rate is {rate}; it must be above 0, or inf")
    if math.isinf(rate):
        return [0.0] * count
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, max(count - 1, 0))
    return [0.0, *np.cumsum(gaps).tolist()][:count]
