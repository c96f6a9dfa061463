"""Two-batch overlap: a step's rows are computed in two halves. While one half is computed, the data of the
other half is sent to other ranks. Texts do not change, so it is used whenever it is faster: if ranks wait for
a considerable part of a step, each size of steps is tried in both ways from time to time.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from statistics import median

from nextn.layers.batch import Span

LEAST_ROWS = 16  # of a step; with fewer rows, most time is for weights, which both halves read
WORTH = 0.1  # halves are tried if ranks wait for at least this part of a step
EVERY, TRIAL = 256, 16  # steps of one size from one trial to the next, and steps of a trial
KEPT = 16  # number of last steps of each way that are compared
BETTER = 0.97  # halves are used if they take at most this part of the time of whole steps


class Halves:
    """Decides on the first rank of each group. If one group wants halves, all use them (csrc/world.h).
    always: for tests."""

    def __init__(self, decides: bool, always: bool = False) -> None:
        self.decides, self.always = decides, always
        self._sizes: dict[int, Size] = {}

    def wanted(self, rows: int) -> bool:
        """Whether a step with `rows` rows of this group should run in halves."""
        if not self.decides or rows < (1 if self.always else LEAST_ROWS):
            return False
        return self.always or self._size(rows).halves()

    def took(self, rows: int, halves: bool, seconds: float, waited: float) -> None:
        if self.decides and not self.always and rows >= LEAST_ROWS:
            self._size(rows).took(halves, seconds, waited)

    def _size(self, rows: int) -> Size:
        return self._sizes.setdefault(rows.bit_length(), Size())


class Size:
    """Steps of about the same number of rows."""

    def __init__(self) -> None:
        self.steps = 0
        self.took_whole: deque[tuple[float, float]] = deque(maxlen=KEPT)  # seconds, part of them waiting
        self.took_halves: deque[float] = deque(maxlen=KEPT)
        self.better = False  # whether halves are better
        self.trial = 0  # steps left in the current trial

    def halves(self) -> bool:
        return self.better != (self.trial > 0)

    def took(self, halves: bool, seconds: float, waited: float) -> None:
        self.steps += 1
        settled = self.trial < TRIAL  # the first step of a trial has cold buffers
        if halves and settled:
            self.took_halves.append(seconds)
        elif not halves:
            self.took_whole.append((seconds, waited / seconds))
        if self.trial:
            self.trial -= 1
        elif not self.took_whole:  # another group has used halves from the first step on
            return
        elif self.steps % EVERY == TRIAL and median(part for _, part in self.took_whole) >= WORTH:
            self.trial = TRIAL
        if self.took_halves and not self.trial:
            whole = median(took for took, _ in self.took_whole)
            self.better = median(self.took_halves) < BETTER * whole


def in_halves(spans: Sequence[Span]) -> tuple[list[Span], int]:
    """(spans, number of rows in the first half). The cut is between two spans if that gives about a half,
    otherwise a span is cut. The second part of a span attends to the first one through the cache."""
    total = sum(len(span.tokens) for span in spans)
    at, best = 0, 0
    for span in spans:
        at += len(span.tokens)
        if abs(2 * at - total) < abs(2 * best - total):
            best = at
    if 4 * abs(2 * best - total) <= total:
        return list(spans), best
    out: list[Span] = []
    at = 0
    for span in spans:
        cut = total // 2 - at
        at += len(span.tokens)
        if 0 < cut < len(span.tokens) and span.paths is None:
            out.append(dataclasses.replace(span, tokens=span.tokens[:cut]))
            out.append(dataclasses.replace(span, tokens=span.tokens[cut:], start=span.start + cut))
            best = total // 2
        else:
            out.append(span)
    return out, best
