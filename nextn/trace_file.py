"""Writes a trace as a file for ui.perfetto.dev and chrome://tracing: Chrome's trace events in gzipped JSON.

Nested intervals of a thread are complete events (ph X). Intervals of a track are asynchronous events (ph b
and e). So are intervals that overlap another interval of their thread without being inside it.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from nextn.trace import Interval, ProcessTrace
from nextn.whole_file import unfinished

Event = dict[str, Any]


def file_name(prefix: str | None = None) -> str:
    """A new file name, from the current time."""
    return f"{prefix or 'nextn'}-{time.time():.6f}.trace.json.gz"


def check_folder(folder: Path) -> None:
    """Creates the folder if necessary. Raises OSError if no file can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write(path: Path, traces: Sequence[ProcessTrace], about: Mapping[str, object]) -> None:
    """Writes all traces into one file, which appears only when it is complete. about: information on the
    trace. Raises OSError; then there is no file."""
    with unfinished(path) as part, part.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(b'{"traceEvents": [')
        for number, event in enumerate(events(traces)):
            file.write(b",\n" if number else b"\n")
            file.write(json.dumps(event).encode())
        file.write(b'\n], "displayTimeUnit": "ms", "otherData": ')
        file.write(json.dumps(dict(about)).encode() + b"}\n")


def read(path: Path) -> list[Event]:
    """Returns the events of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found: list[Event] = json.load(file)["traceEvents"]
    return found


def events(traces: Sequence[ProcessTrace]) -> Iterator[Event]:
    for place, trace in enumerate(traces):
        yield _named("process_name", trace.pid, 0, name=trace.name)
        yield _named("process_sort_index", trace.pid, 0, sort_index=place)
        for thread, name in trace.threads.items():
            yield _named("thread_name", trace.pid, thread, name=name)
        nested, tracks = split_nested(trace.intervals)
        for each in nested:
            duration = _microseconds(each.end - each.begin)
            yield _event(each, "X", trace.pid, each.begin) | {"dur": duration, "args": each.args}
        for number, track in enumerate(tracks):
            yield from _asynchronous(track, trace.pid, number)


def split_nested(intervals: Sequence[Interval]) -> tuple[list[Interval], list[list[Interval]]]:
    """(intervals that are nested in their threads, outer before inner; tracks of all other intervals)."""
    nested: list[Interval] = []
    tracks: list[list[Interval]] = []
    own = sorted((each for each in intervals if not each.track), key=_outer_first)
    for _, of_thread in groupby(sorted(own, key=attrgetter("thread")), key=attrgetter("thread")):
        ends: list[int] = []
        for each in of_thread:
            while ends and ends[-1] <= each.begin:
                ends.pop()
            if ends and each.end > ends[-1]:
                tracks.append([each])
            else:
                ends.append(each.end)
                nested.append(each)
    others = sorted((each for each in intervals if each.track), key=attrgetter("track"))
    tracks += [list(track) for _, track in groupby(others, key=attrgetter("track"))]
    return nested, tracks


def _outer_first(each: Interval) -> tuple[int, int]:
    return each.begin, -each.end


def _asynchronous(track: Sequence[Interval], pid: int, number: int) -> Iterator[Event]:
    """Events in order of time. At equal times: inner ends, outer ends, outer begins, inner begins."""
    found: list[tuple[tuple[int, int, int], Event]] = []
    for each in track:
        end = max(each.end, each.begin + 1)
        common = {"id": f"{number:#x}"}
        begun = _event(each, "b", pid, each.begin) | common | {"args": each.args}
        found.append(((each.begin, 1, -end), begun))
        found.append(((end, 0, -each.begin), _event(each, "e", pid, end) | common))
    for _, event in sorted(found, key=lambda pair: pair[0]):
        yield event


def _event(each: Interval, kind: str, pid: int, at: int) -> Event:
    time = _microseconds(at)
    return {"ph": kind, "cat": each.lane, "name": each.name, "pid": pid, "tid": each.thread, "ts": time}


def _named(what: str, pid: int, thread: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": thread, "args": args}


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1000
