"""Measures which arithmetic multiplies weights fastest, once per machine and weight format, and saves it.

A level of kernels has up to three ways to multiply rows with a weight: AMX tiles, dot products of bf16 pairs,
and f32 multiply-adds. The fastest one depends on the chip. All row counts of a weight use the same way,
because a row's bits must not depend on the rows beside it. So a way is judged at 1 to 256 rows together, by
the geometric mean of its times divided by those of the level's default way. The default stays unless this
mean is below GAIN. The shapes of the trials are fixed: the choice depends on machine, build and format, but
not on the model or its split. So all ranks and all later starts choose the same way.
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


class Ways:
    """The way for each kind of weights. level: of the kernels. folder: where the results are saved, by
    default nextn/kernels in the user's cache. If it cannot be written, nothing is measured, and every kind
    uses the level's default way."""

    def __init__(self, level: str, folder: Path | None = None) -> None:
        self._level = level
        self._file = TrialFile(level, folder)
        self._known: dict[int, int] = {}

    def of(self, kind: int) -> int:
        """The way for weights of this kind: saved, or measured now, which takes about 50 ms per way."""
        if kind not in self._known:
            self._known[kind] = self._find(kind)
        return self._known[kind]

    def kept(self) -> dict[str, str]:
        """The results of earlier starts: name of the format -> description."""
        formats = self._file.read()["formats"]
        words = {}
        for name, found in formats.items():
            with contextlib.suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
                words[name] = describe(found["way"], _seconds(found))
        return words

    def _find(self, kind: int) -> int:
        able = library(self._level).nx_ways(kind)
        # Dot products of bytes round their inputs, so an option selects them, and not their speed.
        ways = [way for way in range(1, len(WAYS)) if able >> way & 1 and way != BY_BYTES]
        if len(ways) < 2:
            return 0
        try:
            with self._file.locked():
                return self._kept_or_measured(kind, ways)
        except OSError as e:
            log.info("kernels: %s weights by the level's own arithmetic (%s)", KINDS[kind], e)
            return 0

    def _kept_or_measured(self, kind: int, ways: Sequence[int]) -> int:
        kept, name = self._file.read(), KINDS[kind]
        with contextlib.suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
            found = kept["formats"][name]
            if found["way"] in (0, *ways):
                log.info("kernels: %s weights by %s", name, describe(found["way"], _seconds(found)))
                return int(found["way"])
        seconds = measure(self._level, kind, (0, *ways))
        way = choose(seconds)
        kept["formats"][name] = {"way": way, "seconds": {WAYS[w]: found for w, found in seconds.items()}}
        self._file.write(kept)
        log.info("kernels: %s weights by %s", name, describe(way, seconds))
        return way


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
        return f"{WAYS[0]}, the fastest of {len(seconds) - 1}"
    one, many = (seconds[way][i] / seconds[0][i] for i in (0, -1))
    return f"{WAYS[way]}: {one:.2f} of the time of {WAYS[0]} at 1 row, {many:.2f} at {ROWS[-1]}"


def _seconds(found: Mapping[str, Any]) -> Seconds:
    """The times of a saved result. Raises KeyError, TypeError or ValueError if the result is invalid."""
    seconds = {WAYS.index(name): [float(s) for s in each] for name, each in found["seconds"].items()}
    if found["way"] not in seconds or any(len(each) != len(ROWS) for each in seconds.values()):
        raise ValueError(found)
    return seconds
