"""Records where time is spent: named intervals of one process, while a profile runs.

    TRACE.start("engine", steps=20)
    lap = TRACE.laps("engine")
    plan = ...
    lap("plan")                      # from the last lap to here
    ...
    trace = TRACE.take()             # of this process; `nextn.trace_file` writes it

While no profile runs, `laps` is one test and a lap is an empty call: together about 1 us per step. Times are
from `perf_counter_ns`. On Linux this is CLOCK_MONOTONIC, which all processes of a machine share, so their
traces need no alignment.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from time import perf_counter_ns as clock
from typing import Any, NamedTuple, TypeAlias, TypeVar

MOST = 200_000  # intervals of one process; beyond it, the oldest are dropped
Result = TypeVar("Result")
Arguments: TypeAlias = dict[str, int | float | str | bool | None]


class Interval(NamedTuple):
    """lane: the part of the program, such as engine, runner or HTTP. thread: a key of `ProcessTrace.threads`.
    begin, end: from `perf_counter_ns`. track: set for intervals that overlap others of their thread, such as
    requests; those of one track are drawn together."""

    lane: str
    name: str
    thread: int
    begin: int
    end: int
    args: Arguments
    track: str = ""


@dataclass
class ProcessTrace:
    """The record of one process. steps: an engine's steps with requests. left_out: number of the oldest
    intervals, which were dropped."""

    pid: int
    name: str
    threads: dict[int, str] = field(default_factory=dict)  # by the thread's native id
    intervals: list[Interval] = field(default_factory=list)
    steps: int = 0
    left_out: int = 0


class Laps:
    """Consecutive intervals of one lane."""

    __slots__ = ("_first", "_last", "_recorder", "lane")

    def __init__(self, recorder: Recorder, lane: str) -> None:
        self._recorder, self.lane = recorder, lane
        self._first = self._last = clock()

    def __call__(self, name: str, **args: Any) -> None:
        """Records the interval since the end of the last lap."""
        begin, self._last = self._last, clock()
        self._recorder.add(self.lane, name, begin, self._last, args)

    def skip(self) -> None:
        """Leaves out the time since the last lap."""
        self._last = clock()

    def whole(self, name: str, **args: Any) -> None:
        """Records the interval since the beginning of the first lap."""
        self._recorder.add(self.lane, name, self._first, clock(), args)


class NoLaps(Laps):
    """Used while no profile runs. Records nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def __call__(self, name: str, **args: Any) -> None:
        pass

    def skip(self) -> None:
        pass

    def whole(self, name: str, **args: Any) -> None:
        pass


NO_LAPS = NoLaps()


class Recorder:
    """on: whether a profile runs. Any thread may add intervals; one thread starts and takes."""

    def __init__(self) -> None:
        self.on = False
        self._begin("", None, 0)

    def _begin(self, process: str, steps: int | None, after: int) -> None:
        self._process, self._most, self._after = process, steps, after
        self._clear()

    def _clear(self) -> None:
        self._steps = self._added = 0
        self._threads: dict[int, tuple[int, str]] = {}  # Python's id -> (native id, name)
        self._intervals: deque[Interval] = deque(maxlen=MOST)

    def start(self, process: str, steps: int | None = None, after: int = 0) -> None:
        """Starts a new recording. process: its name in the trace. after: number of steps to leave out first.
        steps: the recording ends after this number of further steps; None: it does not end by itself."""
        self._begin(process, steps, after)
        self.on = True

    def laps(self, lane: str) -> Laps:
        return Laps(self, lane) if self.on else NO_LAPS

    def add(self, lane: str, name: str, begin: int, end: int, args: Arguments, track: str = "") -> None:
        ident = threading.get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = (threading.get_native_id(), threading.current_thread().name)
        self._added += 1
        self._intervals.append(Interval(lane, name, thread[0], begin, end, args, track))

    def around(self, lane: str, name: str, call: Callable[..., Result]) -> Callable[..., Result]:
        """`call`, recorded as an interval of the thread that runs it. Returns `call` itself if no profile
        runs."""
        if not self.on:
            return call

        @wraps(call)
        def recorded(*values: Any) -> Result:
            lap = self.laps(lane)
            try:
                return call(*values)
            finally:
                lap(name)

        return recorded

    def stepped(self) -> None:
        """A step with requests has ended."""
        if self._after:
            self._after -= 1
            if not self._after:
                self._clear()
            return
        self._steps += 1
        if self._steps == self._most:
            self.on = False

    def take(self) -> ProcessTrace:
        """Ends the recording and returns it. It is empty if no step came after the steps left out."""
        self.on = False
        intervals = [] if self._after else list(self._intervals)
        left_out = 0 if self._after else self._added - len(intervals)
        trace = ProcessTrace(
            os.getpid(), self._process, dict(self._threads.values()), intervals, self._steps, left_out
        )
        self._begin("", None, 0)
        return trace


TRACE = Recorder()  # the recorder of this process
