"""Whether steps with few rows read the target's weights past the outer caches.

A step reads each weight of the target once. Weights that are larger than the last-level cache evict all other
data from it in every step: the drafter's weights, which are read once per draft, activations, and what Python
uses between two native calls. With a non-temporal prefetch, a cache line goes to the first-level cache only.
nextn uses it if the weights are larger than the last-level cache, and if it does not make reading itself
slower. That is measured once per machine, level and build, in about 30 ms, and saved. Only products that read
a panel once use it: those of one row, or of up to 6 with AVX-512.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextn.machine import data_caches
from nextn.ops.cpu.interface import BF16
from nextn.ops.cpu.trials import TrialFile, least_seconds, trial_products

log = logging.getLogger("nextn.engine")

SLOWER = 1.02  # a non-temporal prefetch is used if the time of reading grows by less than this factor
MOST = 96 << 20  # bytes of the trial's weights


def non_temporal(level: str, size: int, folder: Path | None = None) -> bool:
    """Whether kernels of this level should read a model's weights past the outer caches. size: bytes of all
    its weights. False if the size of the cache is unknown, or if the result cannot be saved."""
    cache = max(data_caches().values(), default=0)
    if not 0 < cache < size:
        return False
    file = TrialFile(level, folder)
    try:
        with file.locked():
            found = _saved(results := file.read())
            if found is None:
                results["reading"] = found = measure_reading(level, cache)
                file.write(results)
    except OSError as e:
        log.info("kernels: weights are read through the caches (%s)", e)
        return False
    log.info("kernels: %s", describe(*found))
    return chosen(*found)


def saved(level: str, folder: Path | None = None) -> str | None:
    """The result of an earlier start in words; None if there is none."""
    found = _saved(TrialFile(level, folder).read())
    return None if found is None else describe(*found)


def chosen(usual: float, past: float) -> bool:
    """Whether reading past the caches is used, by the times of both ways of reading."""
    return past < SLOWER * usual


def describe(usual: float, past: float) -> str:
    where = "past" if chosen(usual, past) else "through"
    return f"large weights are read {where} the caches; past them takes {past / usual:.2f} of the time"


def _saved(results: Mapping[str, Any]) -> tuple[float, float] | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        usual, past = map(float, results["reading"])
        if usual > 0.0 < past:
            return usual, past
    return None


def measure_reading(level: str, cache: int) -> tuple[float, float]:
    """Seconds in which one row meets weights of twice the size of the cache, at most MOST bytes: without and
    with non-temporal prefetch."""
    with trial_products(level, BF16, min(2 * cache, MOST), 1) as (weights, multiply):

        def read(past: int) -> None:
            for weight in weights:
                weight.struct.non_temporal = past
            multiply(1, weights)

        found = least_seconds((0, 1), read)
    return found[0], found[1]
