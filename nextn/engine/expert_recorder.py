"""Counts of rows per expert: a record on request, and the recent load of each shard.

The executor counts from its start on. These classes compute differences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from nextn.distributed.improvement import dispatched
from nextn.distributed.step_world import StepWorld
from nextn.engine.executor import ExpertCounts
from nextn.expert_load import CountTable, ExpertRecord, ShardRows

MOST_STEPS = 1000  # maximum number of steps in a record by step; older ones are dropped
WINDOW = 40  # steps


class ExpertRecorder:
    """counts: the executor's function. by_step: record a table for each step. Call `stepped` after each step
    that had rows."""

    def __init__(self, counts: Callable[[], ExpertCounts | None], by_step: bool) -> None:
        self._counts, self._by_step = counts, by_step
        self._recording = False
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._before: ExpertCounts | None = None  # at the beginning; by step: after the last one
        self._found: ExpertCounts | None = None  # at the end of a record that has been stopped
        self._tables: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MOST_STEPS)

    def start(self) -> None:
        """Starts a new record. Raises ValueError if the executor does not count."""
        self._clear()
        self._before = self._counts()
        if self._before is None:
            raise ValueError(
                "this engine does not count what experts get: its model has none, or it does not run on the "
                "native kernels (--kernel-backend cpu) and shares no experts (--ep-size)"
            )
        self._recording = True

    @property
    def by_step(self) -> bool:
        """Whether it records a table for each step now. Then no other step may run at the same time."""
        return self._recording and self._by_step

    def stop(self) -> None:
        """Stops recording. The record is kept."""
        if self._recording:
            self._found, self._recording = self._counts(), False

    def stepped(self) -> None:
        if not self._recording:
            return
        self._steps += 1
        if self._by_step:
            counts = self._counts()
            self._tables.append(_since(counts, self._before, np.int32))
            self._before = counts

    def take(self) -> ExpertRecord | None:
        """Returns the record; if it still records, a new record begins. None if no step was recorded."""
        if not self._steps:
            return None
        if self._by_step:
            target, nextn = (np.stack(tables) for tables in zip(*self._tables, strict=True))
        else:
            target, nextn = _since(self._counts() if self._recording else self._found, self._before, np.int64)
        left_out = self._steps - len(self._tables) if self._by_step else 0
        record = ExpertRecord(_table(target), _table(nextn) if nextn.size else None, self._steps, left_out)
        if self._recording:
            self.start()
        else:
            self._clear()
        return record


def _since(now: ExpertCounts | None, before: ExpertCounts | None, kind: type) -> ExpertCounts:
    assert now is not None
    assert before is not None
    return (now[0] - before[0]).astype(kind), (now[1] - before[1]).astype(kind)


def _table(counts: np.ndarray) -> CountTable:
    return CountTable(counts.shape, counts.tobytes())


class ShardWindow:
    """rows: of each shard, in the last complete window of steps. If the engine has become idle since then, in
    the current window. A change of placement begins a new window."""

    def __init__(self, counts: Callable[[], ExpertCounts | None], world: StepWorld) -> None:
        self._counts, self._world, self._share = counts, world, world.share
        self.rows: ShardRows | None = None
        self._begin(self._target())

    @property
    def sent(self) -> int:
        return self._world.sent_by_group

    def _target(self) -> np.ndarray:
        counts = self._counts()
        assert counts is not None
        return counts[0]

    def _begin(self, counts: np.ndarray) -> None:
        self._before, self._steps, self._placement = counts, 0, self._share.placement

    def stepped(self, idle: bool) -> None:
        """idle: there is no more work."""
        self._steps += 1
        if self._share.placement is not self._placement:
            self._begin(self._target())
        elif idle or self._steps >= WINDOW:
            counts = self._target()
            own = np.zeros((self._world.groups, *counts.shape), np.int64)
            own[self._world.group] = counts - self._before
            loads = dispatched(own, self._placement, self._share.shards, self._world.dynamic)
            self.rows = ShardRows(self._share.shards, loads.tobytes())
            if self._steps >= WINDOW:
                self._begin(counts)
