"""Two-batch overlap: a step's rows in two halves by turns, so that what one half sends to other ranks is
under way while the other one is computed. Texts are the same, so it is used where it is faster: each size of
steps is tried both ways now and then, once waiting for others takes a part of its time that is worth hiding.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from statistics import median

from nextn.layers.batch import Span

LEAST_ROWS = 16  # of a step: below that, the weights that both halves read count more than all else
WORTH = 0.1  # part of a step that ranks wait, from which on halves are tried
EVERY, TRIAL = 64, 4  # steps of one size: from one trial of the other way to the next, and of a trial
KEPT = 8  # of each way, how many of the last steps count
BETTER = 0.97  # of the time in one go: halves that save less are not worth it


class Halves:
    """Decides on the first rank of each group; all go in halves where one of them wants it (csrc/world.h).
    always: for tests."""

    def __init__(self, decides: bool, always: bool = False) -> None:
        self.decides, self.always = decides, always
        self._sizes: dict[int, Size] = {}

    def wanted(self, rows: int) -> bool:
        """For a step of so many rows of this group."""
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
        self.took_whole: deque[tuple[float, float]] = deque(maxlen=KEPT)  # seconds, and part of them waiting
        self.took_halves: deque[float] = deque(maxlen=KEPT)
        self.better = False  # are halves?
        self.trial = 0  # steps left of one

    def halves(self) -> bool:
        return self.better != (self.trial > 0)

    def took(self, halves: bool, seconds: float, waited: float) -> None:
        self.steps += 1
        settled = self.trial < TRIAL  # the first step of a trial finds cold buffers
        if halves and settled:
            self.took_halves.append(seconds)
        elif not halves:
            self.took_whole.append((seconds, waited / seconds))
        if self.trial:
            self.trial -= 1
        elif not self.took_whole:  # another group has asked for halves from the first step on
            return
        elif self.steps % EVERY == TRIAL and median(part for _, part in self.took_whole) >= WORTH:
            self.trial = TRIAL
        if self.took_halves and not self.trial:
            whole = median(took for took, _ in self.took_whole)
            self.better = median(self.took_halves) < BETTER * whole


def in_halves(spans: Sequence[Span]) -> tuple[list[Span], int]:
    """The spans, and how many rows are in the first half: those of whole spans if that is about a half, else
    a span is cut. A later part of a span sees the earlier one in the cache."""
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
