"""Measures which arithmetic multiplies weights fastest, once per machine and weight format, and saves it.

A level of kernels has up to four ways to multiply rows with a weight: AMX tiles, dot products of bf16 pairs,
f32 multiply-adds, and dot products of bytes. The fastest one depends on the chip. Dot products of bytes round
their inputs to 8 bits, so an option can exclude them; all ways are measured nevertheless.

All row counts of a weight use the same way, because a row's bits must not depend on the rows beside it. So a
way is judged at 1 to 256 rows together, by the geometric mean of its times divided by those of the level's
default way. The default stays unless this mean is below GAIN. The shapes of the trials are fixed: the choice
depends on machine, build and format, but not on the model or its split. So all ranks and all later starts
choose the same way.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nextn.ops.cpu.interface import BY_BYTES, KINDS, WAYS
from nextn.ops.cpu.library import library
from nextn.ops.cpu.trials import TrialFile, least_seconds, trial_products
from nextn.ops.cpu.weights import PackedWeight

log = logging.getLogger("nextn.engine")

ROWS = (1, 4, 16, 64, 256)
GAIN = 0.95
TRIAL_BYTES = 24 << 20  # of weights that products with few rows read in turn, as a step reads a model
COMPUTE_BOUND_ROWS = 16  # rows; from here on arithmetic limits the speed, and two weights are enough
Seconds = Mapping[int, Sequence[float]]  # way -> time of a product with one weight, at each of ROWS
INVALID = (AttributeError, KeyError, TypeError, ValueError)  # what reading an invalid result raises


class Ways:
    """The way for each kind of weights. level: of the kernels. rounded: whether inputs may be rounded to 8
    bits. folder: where the results are saved, by default nextn/kernels in the user's cache. If it cannot be
    written, nothing is measured, and every kind uses the level's default way."""

    def __init__(self, level: str, folder: Path | None = None, rounded: bool = True) -> None:
        self._level, self._rounded = level, rounded
        self._file = TrialFile(level, folder)
        self._known: dict[int, int] = {}

    def of(self, kind: int) -> int:
        """The way for weights of this kind: by saved times, or measured now, in about 50 ms per way."""
        if kind not in self._known:
            self._known[kind] = self._find(kind)
        return self._known[kind]

    def kept(self) -> dict[str, str]:
        """The results of earlier starts: name of the format -> description."""
        formats = self._file.read()["formats"]
        words = {}
        for name, found in formats.items():
            with contextlib.suppress(*INVALID):
                words[name] = describe(choose(seconds := _seconds(found)), seconds)
        return words

    def _find(self, kind: int) -> int:
        able = library(self._level).nx_ways(kind)
        ways = [way for way in range(1, len(WAYS)) if able >> way & 1]
        allowed = [0, *(way for way in ways if self._rounded or way != BY_BYTES)]
        if len(allowed) < 2:
            return 0
        try:
            with self._file.locked():
                seconds = self._kept_or_measured(kind, (0, *ways))
        except OSError as e:
            log.info("kernels: %s weights by the level's own arithmetic (%s)", KINDS[kind], e)
            return 0
        seconds = {way: seconds[way] for way in allowed}
        way = choose(seconds)
        log.info("kernels: %s weights by %s", KINDS[kind], describe(way, seconds))
        return way

    def _kept_or_measured(self, kind: int, ways: Sequence[int]) -> Seconds:
        kept, name = self._file.read(), KINDS[kind]
        with contextlib.suppress(*INVALID):
            seconds = _seconds(kept["formats"][name])
            if set(seconds) == set(ways):
                return seconds
        seconds = measure(self._level, kind, ways)
        kept["formats"][name] = {WAYS[way]: times for way, times in seconds.items()}
        self._file.write(kept)
        return seconds


def measure(level: str, kind: int, ways: Sequence[int]) -> dict[int, list[float]]:
    """way -> seconds of a product with one weight, at each of ROWS. The ways take turns."""
    found: dict[int, list[float]] = {way: [] for way in ways}
    with trial_products(level, kind, TRIAL_BYTES, max(ROWS)) as (weights, multiply):

        def product(rows: int, some: Sequence[PackedWeight], way: int) -> None:
            for weight in some:
                weight.struct.way = way
            multiply(rows, some)

        for rows in ROWS:
            some = weights if rows < COMPUTE_BOUND_ROWS else weights[:2]
            for way, least in least_seconds(ways, partial(product, rows, some)).items():
                found[way].append(least / len(some))
    return found


def choose(seconds: Seconds) -> int:
    """The way with the smallest `slowness`; 0, the level's default way, if it is not below GAIN."""
    best = min(seconds, key=lambda way: slowness(seconds, way))
    return best if slowness(seconds, best) < GAIN else 0


def slowness(seconds: Seconds, way: int) -> float:
    """Time of this way divided by that of way 0: the geometric mean over all row counts."""
    ratios = [mine / own for mine, own in zip(seconds[way], seconds[0], strict=True)]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def describe(way: int, seconds: Seconds) -> str:
    """A way in words, with its time divided by that of way 0, at one row and at the most rows."""
    if way == 0:
        return f"{WAYS[0]}, no other is faster"
    one, many = (seconds[way][i] / seconds[0][i] for i in (0, -1))
    return f"{WAYS[way]}: {one:.2f} of the time of {WAYS[0]} at 1 row, {many:.2f} at {ROWS[-1]}"


def _seconds(found: Mapping[str, Any]) -> Seconds:
    """The times of a saved result. Raises one of INVALID if the result is invalid."""
    seconds = {WAYS.index(name): [float(s) for s in each] for name, each in found.items()}
    if 0 not in seconds or any(len(each) != len(ROWS) or min(each) <= 0 for each in seconds.values()):
        raise ValueError(found)
    return seconds
