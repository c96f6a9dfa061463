"""Whether steps with few rows read the target's weights past the outer caches.

A step reads each weight of the target once. Weights that are larger than the last-level cache evict all other
data from it in every step: the drafter's weights, which are read once per draft, activations, and what Python
uses between two native calls. With a non-temporal prefetch, a cache line goes to the first-level cache only.
nextn uses it if the weights are larger than the last-level cache, and if it does not make reading itself
slower. That is measured once per machine, level and build, in about 40 ms, and saved. Only products that read
a panel once use it: those of one row, or of up to 6 with AVX-512.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from nextn.machine import data_caches
from nextn.ops.cpu.interface import BF16
from nextn.ops.cpu.trials import TrialFile, trial_products

log = logging.getLogger("nextn.engine")

# A non-temporal prefetch is used unless it was slower in this share of pairs of readings, and by this factor
# in the median pair. If other work disturbs the pairs, each reading is the slower one in about half of them.
OFTEN, SLOWER = 0.8, 1.02
PAIRS, SECONDS = 24, 0.1  # number of pairs, and seconds after which no further pair begins
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
                results["past caches"] = found = measure_reading(level, cache)
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


def chosen(ratio: float, slower: float) -> bool:
    """Whether reading past the caches is used. See `measure_reading`."""
    return ratio < SLOWER or slower < OFTEN


def describe(ratio: float, slower: float) -> str:
    where = "past" if chosen(ratio, slower) else "through"
    return f"large weights are read {where} the caches; past them takes {ratio:.2f} of the time"


def _saved(results: Mapping[str, Any]) -> tuple[float, float] | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        ratio, slower = map(float, results["past caches"])
        if ratio > 0.0 <= slower <= 1.0:
            return ratio, slower
    return None


def measure_reading(level: str, cache: int) -> tuple[float, float]:
    """One row meets weights of twice the size of the cache, at most MOST bytes, with non-temporal prefetch
    and without, in turns. Returns the median ratio of both times, and the share of the pairs in which
    non-temporal prefetch took longer."""
    with trial_products(level, BF16, min(2 * cache, MOST), 1) as (weights, multiply):

        def seconds(past: int) -> float:
            for weight in weights:
                weight.struct.non_temporal = past
            start = time.perf_counter()
            multiply(1, weights)
            return time.perf_counter() - start

        seconds(1), seconds(0)  # wakes threads and fills caches
        ratios, end = [seconds(1) / seconds(0)], time.perf_counter() + SECONDS
        while len(ratios) < PAIRS and time.perf_counter() < end:
            usual, past = seconds(0), seconds(1)
            ratios += [past / usual, seconds(1) / seconds(0)]
    return median(ratios), fmean(ratio > 1.0 for ratio in ratios)
