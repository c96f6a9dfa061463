"""The recorder of intervals: what is recorded, when it ends, and that nothing is while it is off."""

from __future__ import annotations

import os
import threading

import pytest

from nextn import trace
from nextn.trace import NO_LAPS, Recorder


def test_off_records_nothing() -> None:
    recorder = Recorder()
    lap = recorder.laps("engine")
    assert lap is NO_LAPS
    lap("plan", rows=3)
    lap.skip()
    lap.whole("step")
    assert recorder.around("server", "parse", len) is len
    assert recorder.take().intervals == []


def test_laps_follow_each_other() -> None:
    recorder = Recorder()
    recorder.start("engine")
    lap = recorder.laps("engine")
    lap("plan")
    lap("run", rows=3)
    lap.skip()
    lap("commit")
    lap.whole("step", requests=1)
    found = recorder.take()
    assert (found.name, found.pid, found.left_out) == ("engine", os.getpid(), 0)
    plan, run, commit, step = found.intervals
    assert [each.name for each in found.intervals] == ["plan", "run", "commit", "step"]
    assert plan.end == run.begin
    assert run.end <= commit.begin <= commit.end <= step.end
    assert step.begin == plan.begin
    assert (run.args, step.args) == ({"rows": 3}, {"requests": 1})
    assert {each.lane for each in found.intervals} == {"engine"}
    assert found.threads == {threading.get_native_id(): threading.current_thread().name}
    assert not recorder.on


def test_a_call_in_a_thread() -> None:
    recorder = Recorder()
    recorder.start("server")
    call = recorder.around("server", "tokenize", str.upper)
    thread = threading.Thread(target=call, args=("a",), name="tokenize_0")
    thread.start()
    thread.join()
    assert call("b") == "B"
    with pytest.raises(TypeError):
        call(1)
    found = recorder.take()
    assert [each.name for each in found.intervals] == ["tokenize"] * 3
    assert len({each.thread for each in found.intervals}) == 2
    assert "tokenize_0" in found.threads.values()


def steps(recorder: Recorder, count: int) -> None:
    for _ in range(count):
        lap = recorder.laps("engine")
        lap("plan")
        if recorder.on:
            recorder.stepped()


def test_it_ends_after_its_steps() -> None:
    recorder = Recorder()
    recorder.start("engine", steps=2)
    steps(recorder, 5)
    assert not recorder.on
    found = recorder.take()
    assert (found.steps, len(found.intervals)) == (2, 2)
    assert recorder.take().intervals == []


def test_steps_that_are_left_out() -> None:
    recorder = Recorder()
    recorder.start("engine", steps=2, after=3)
    steps(recorder, 4)
    assert recorder.on
    steps(recorder, 4)
    found = recorder.take()
    assert (found.steps, len(found.intervals)) == (2, 2)
    recorder.start("engine", after=3)
    steps(recorder, 2)
    found = recorder.take()
    assert (found.steps, found.intervals) == (0, [])


def test_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST", 3)
    recorder = Recorder()
    recorder.start("server")
    for number in range(5):
        recorder.add("server", "send", number, number + 1, {})
    found = recorder.take()
    assert [each.begin for each in found.intervals] == [2, 3, 4]
    assert found.left_out == 2
    recorder.start("server")
    assert recorder.take().left_out == 0
