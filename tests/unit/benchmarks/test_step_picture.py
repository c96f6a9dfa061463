"""benchmarks/step_picture.py: which steps count, and what it adds up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from nextn.trace import Interval, ProcessTrace
from nextn.trace_file import write

FOLDER = Path(__file__).parents[3] / "benchmarks"
US = 1000


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import step_picture

    yield step_picture
    for name in ("step_picture", "last_line"):
        sys.modules.pop(name, None)


def step(at: int, length: int, **counts: int) -> list[Interval]:
    """From `at`, in microseconds: a plan of 10, the runner, and a commit of 10."""
    parts = [("engine", "plan", at, 10), ("engine", "commit", at + length - 10, 10)]
    parts += [("runner", "forward", at + 10, length - 20), ("engine", "launch", at + 10, length - 20)]
    whole = Interval("engine", "step", 1, at * US, (at + length) * US, dict(counts))
    made = [Interval(lane, name, 1, b * US, (b + took) * US, {}) for lane, name, b, took in parts]
    return [*made, Interval("engine loop", "send", 1, (at + length) * US, (at + length + 20) * US, {}), whole]


def test_two_steps_of_a_trace(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    full = {"requests": 2, "rows": 6, "decoding": 2, "drafts": 4}
    prompt = {"requests": 2, "rows": 30, "decoding": 2, "drafts": 4}
    intervals = [
        each
        for at, length, counts in [
            (0, 100, full), (120, 100, full), (240, 300, prompt), (560, 200, full), (780, 100, full),
            (900, 80, full), (1000, 100, full | {"requests": 1}),
        ]
        for each in step(at, length, **counts)
    ]  # fmt: skip
    server = ProcessTrace(1, "server", {}, [Interval("server", "detokenize", 9, 130 * US, 150 * US, {})])
    trace = tmp_path / "a.trace.json.gz"
    write(trace, [server, ProcessTrace(2, "engine", {}, intervals, 7)], {})
    events = [event for event in script.read(trace) if event["ph"] == "X"]
    steps = script.steps_of(events)
    assert [(each.begin, each.end, each.decodes) for each in steps] == [
        (100, 220, True), (220, 540, False), (540, 760, True), (760, 880, True), (880, 980, True),
        (980, 1100, True),
    ]  # fmt: skip
    assert script.busy(events, 100, 220) == 80
    picture = tmp_path / "two.png"
    monkeypatch.setattr(sys, "argv", ["step_picture.py", "--trace", str(trace), "--picture", str(picture)])
    assert script.main() == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    line = capsys.readouterr().out.splitlines()[-1]
    assert '"steps": 4, "step_ms": 0.12' in line  # 120, 220, 120, 100
    assert '"engine loop: send": 0.02' in line
    assert '"server: detokenize": 0.0' in line
