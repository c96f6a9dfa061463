"""Two-batch overlap: a step's rows in two halves by turns, so that what one half sends to other ranks is
under way while the other one is computed. Texts are the same, so it is used where it is faster: each size of
steps is tried both ways now and then, once waiting for others takes a part of its time that is worth hiding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nextn.layers.batch import Span

LEAST_ROWS = 16  # of a step: below that, the weights that both halves read count more than all else
WORTH = 0.1  # part of a step that ranks wait, from which on halves are tried
EVERY = 64  # steps of one size from one trial of the slower way to the next
NEW = 0.2  # weight of a step in the mean of what its like took
BETTER = 0.97  # of the time in one go: halves that save less are not worth it


class Halves:
    """Decides for all ranks, on the first one; the others follow it (csrc/world.h). always: for tests."""

    def __init__(self, decides: bool, always: bool = False) -> None:
        self.decides, self.always = decides, always
        self._sizes: dict[int, Size] = {}

    def wanted(self, rows: int) -> bool:
        """For a step of so many rows of this group."""
        if not self.decides or rows < (1 if self.always else LEAST_ROWS):
            return False
        return self.always or self._size(rows).halves()

    def took(self, rows: int, halves: bool, seconds: float, waited: float) -> None:
        if self.decides and rows >= LEAST_ROWS:
            self._size(rows).took(halves, seconds, waited)

    def _size(self, rows: int) -> Size:
        return self._sizes.setdefault(rows.bit_length(), Size())


@dataclasses.dataclass
class Size:
    """Steps of about the same number of rows. Seconds of one in one go and in halves; waiting: part of the
    former."""

    whole: float | None = None
    half: float | None = None
    waiting: float = 0.0
    steps: int = 0

    def halves(self) -> bool:
        if self.whole is None or self.waiting < WORTH:
            return False
        better = self.half is not None and self.half < BETTER * self.whole
        trial = self.half is None or self.steps % EVERY == 0
        return better != trial

    def took(self, halves: bool, seconds: float, waited: float) -> None:
        self.steps += 1
        if halves:
            self.half = _mean(self.half, seconds)
        else:
            self.whole = _mean(self.whole, seconds)
            self.waiting = _mean(self.waiting if self.steps > 1 else None, waited / seconds)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + NEW * (now - before)


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
