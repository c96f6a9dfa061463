"""The arithmetic of benchmarks/gap_beside.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gap_beside

    yield gap_beside
    for name in ("gap_beside", "last_line"):
        sys.modules.pop(name, None)


def test_gaps_are_those_that_lie_in_the_time_or_reach_into_it(script: Any) -> None:
    watcher = script.Watcher(None, "m", 4096)
    watcher.streams = [[0.0, 1.0, 1.5, 4.0], [5.0, 9.0], [9.5, 9.6]]
    assert watcher.gaps(1.2, 6.0) == [0.5, 2.5, 4.0]  # none from one stream to the next
    assert watcher.gaps(9.7, 10.0) == []


def test_rounds_count_together(script: Any) -> None:
    one = {"usual": [0.001] * 60, "gaps": [0.002] * 99, "seconds": 1.0, "bytes": 10, "computed": 4}
    pings = {"pings": [0.001], "usual_pings": [0.001]}
    other = one | {"gaps": [0.5], "seconds": 3.0}
    found = script.summed([one | pings, other | pings])
    assert found["usual_ms"] == {"median": 1.0, "p99": 1.0, "max": 1.0}
    assert found["beside_ms"] == {"median": 2.0, "p99": 500.0, "max": 500.0}
    assert (found["ratio_of_p99"], found["ratio_of_medians"], found["seconds"]) == (500.0, 2.0, 2.0)
    assert found["prompt_tokens_computed"] == 4
