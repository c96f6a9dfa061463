"""Trace files: valid JSON, intervals nested or apart, and no file but a whole one."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.trace import Interval, ProcessTrace
from nextn.trace_file import check_folder, events, file_name, read, split_nested, write

TIMES = st.integers(0, 12)
INTERVALS = st.lists(
    st.builds(
        lambda lane, thread, begin, length, track: Interval(
            lane, "name", thread, begin, begin + length, {}, track
        ),
        st.sampled_from(["engine", "HTTP"]), st.integers(1, 2), TIMES, TIMES,
        st.sampled_from(["", "", "a", "b"]),
    ),
    max_size=12,
)  # fmt: skip


@given(INTERVALS)
def test_all_are_nested_or_in_tracks(intervals: list[Interval]) -> None:
    nested, tracks = split_nested(intervals)
    assert Counter(map(repr, intervals)) == Counter(
        map(repr, [*nested, *(each for t in tracks for each in t)])
    )
    assert not any(each.track for each in nested)
    for thread in (1, 2):
        for one, other in combinations([each for each in nested if each.thread == thread], 2):
            first, second = sorted((one, other), key=lambda each: (each.begin, -each.end))
            assert second.begin >= first.end or second.end <= first.end


@given(INTERVALS)
def test_what_begins_ends(intervals: list[Interval]) -> None:
    found = list(events([ProcessTrace(7, "engine", {1: "a", 2: "b"}, intervals)]))
    json.dumps(found)
    depth: Counter[str] = Counter()
    times: dict[str, float] = {}
    for event in found:
        if event["ph"] in "be":
            track = event["id"]
            assert event["ts"] >= times.get(track, 0.0)
            times[track] = event["ts"]
            depth[track] += 1 if event["ph"] == "b" else -1
            assert depth[track] >= 0
    assert not any(depth.values())
    assert sum(event["ph"] in "Xb" for event in found) == len(intervals)


def some() -> list[ProcessTrace]:
    engine = [
        Interval("engine", "step", 5, 2_000, 9_500, {"rows": 3}),
        Interval("engine", "plan", 5, 2_000, 3_000, {}),
        Interval("runner", "forward", 6, 3_000, 8_000, {}),
    ]
    http = [
        Interval("HTTP", "POST /generate", 3, 1_000, 9_000, {"status": 200}, "request a"),
        Interval("HTTP", "until the first byte", 3, 1_000, 4_000, {}, "request a"),
        Interval("HTTP", "rest of the answer", 3, 4_000, 9_000, {}, "request a"),
    ]
    server = ProcessTrace(10, "server", {3: "MainThread"}, http)
    return [server, ProcessTrace(11, "engine", {5: "MainThread", 6: "runner"}, engine, 1)]


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / file_name("mine")
    write(path, some(), {"model": "nextn-tiny"})
    assert path.name.startswith("mine-")
    assert path.name.endswith(".trace.json.gz")
    assert list(tmp_path.iterdir()) == [path]
    with gzip.open(path, "rt") as file:
        whole: dict[str, Any] = json.load(file)
    assert whole["otherData"] == {"model": "nextn-tiny"}
    found = read(path)
    assert found == whole["traceEvents"]
    named = {(e["name"], e["pid"], *e["args"].values()) for e in found if e["ph"] == "M"}
    assert {
        ("process_name", 10, "server"),
        ("process_name", 11, "engine"),
        ("thread_name", 11, "runner"),
    } <= named
    step, plan, forward = (event for event in found if event["ph"] == "X")
    assert (step["name"], step["ts"], step["dur"], step["tid"], step["args"]) == (
        "step",
        2.0,
        7.5,
        5,
        {"rows": 3},
    )
    assert (plan["name"], forward["cat"]) == ("plan", "runner")
    order = [(event["ph"], event["name"], event["ts"]) for event in found if event["ph"] in "be"]
    assert order == [
        ("b", "POST /generate", 1.0), ("b", "until the first byte", 1.0), ("e", "until the first byte", 4.0),
        ("b", "rest of the answer", 4.0), ("e", "rest of the answer", 9.0), ("e", "POST /generate", 9.0),
    ]  # fmt: skip


def test_without_events(tmp_path: Path) -> None:
    write(tmp_path / "empty.gz", [], {})
    assert read(tmp_path / "empty.gz") == []


def test_a_file_that_fails_is_not_there(tmp_path: Path) -> None:
    bad = ProcessTrace(1, "engine", {}, [Interval("engine", "step", 1, 0, 1, {"rows": object()})])  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        write(tmp_path / "a.gz", [*some(), bad], {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        write(tmp_path / "gone" / "a.gz", some(), {})
    assert list(tmp_path.iterdir()) == []


def test_folders(tmp_path: Path) -> None:
    check_folder(tmp_path / "made" / "for it")
    assert list((tmp_path / "made" / "for it").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        check_folder(tmp_path / "file")
    with pytest.raises(OSError):
        check_folder(tmp_path / "file" / "below")
