"""Where the time goes: named intervals of one process, recorded while a profile runs.

    TRACE.start("engine", steps=20)
    lap = TRACE.laps("engine")
    plan = ...
    lap("plan")                      # from the last lap to here
    ...
    trace = TRACE.take()             # of this process; `nextn.trace_file` writes it

While no profile runs, `laps` is one test and a lap is an empty call: together about 1 us a step. Times are
those of `perf_counter_ns`. On Linux that is CLOCK_MONOTONIC, which all processes of a machine share, so their
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

MOST = 200_000  # intervals of one process: then the oldest go
Result = TypeVar("Result")
Arguments: TypeAlias = dict[str, int | float | str | bool | None]


class Interval(NamedTuple):
    """lane: who did it, such as engine, runner or HTTP. thread: a key of `ProcessTrace.threads`. begin, end:
    of `perf_counter_ns`. track: of intervals that overlap others of their thread, such as requests; those of
    one track are drawn together."""

    lane: str
    name: str
    thread: int
    begin: int
    end: int
    args: Arguments
    track: str = ""


@dataclass
class ProcessTrace:
    """What one process recorded. steps: of an engine, those with requests. left_out: intervals, the oldest,
    for which there was no room."""

    pid: int
    name: str
    threads: dict[int, str] = field(default_factory=dict)  # by the system's id
    intervals: list[Interval] = field(default_factory=list)
    steps: int = 0
    left_out: int = 0


class Laps:
    """Intervals of one lane that follow each other."""

    __slots__ = ("_first", "_last", "_recorder", "lane")

    def __init__(self, recorder: Recorder, lane: str) -> None:
        self._recorder, self.lane = recorder, lane
        self._first = self._last = clock()

    def __call__(self, name: str, **args: Any) -> None:
        """The interval since the last lap ended."""
        begin, self._last = self._last, clock()
        self._recorder.add(self.lane, name, begin, self._last, args)

    def skip(self) -> None:
        """What happened since the last lap is nobody's."""
        self._last = clock()

    def whole(self, name: str, **args: Any) -> None:
        """The interval since the first lap began."""
        self._recorder.add(self.lane, name, self._first, clock(), args)


class NoLaps(Laps):
    """While no profile runs."""

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
    """on: a profile runs. Any thread may add intervals; one starts and takes."""

    def __init__(self) -> None:
        self.on = False
        self._begin("", None, 0)

    def _begin(self, process: str, steps: int | None, after: int) -> None:
        self._process, self._most, self._after = process, steps, after
        self._clear()

    def _clear(self) -> None:
        self._steps = self._added = 0
        self._threads: dict[int, tuple[int, str]] = {}  # by Python's id: the system's, and the name
        self._intervals: deque[Interval] = deque(maxlen=MOST)

    def start(self, process: str, steps: int | None = None, after: int = 0) -> None:
        """Anew. process: its name in the trace. steps: it ends by itself after so many, not counting `after`
        steps which it leaves out before that."""
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
        """`call`, recorded in the thread that runs it."""
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
        """Ends it. Returns what was recorded: nothing if no steps came after those that are left out."""
        self.on = False
        intervals = [] if self._after else list(self._intervals)
        left_out = 0 if self._after else self._added - len(intervals)
        trace = ProcessTrace(
            os.getpid(), self._process, dict(self._threads.values()), intervals, self._steps, left_out
        )
        self._begin("", None, 0)
        return trace


TRACE = Recorder()  # of this process
