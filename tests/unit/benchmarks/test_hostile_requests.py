"""benchmarks/fuzz/hostile_requests.py: request i of a seed is always the same, every kind of request comes,
and what must not happen is kept."""

from __future__ import annotations

import collections
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders of scripts, not packages."""
    for folder in ("fuzz", "faults", ""):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    yield
    for name in [n for n, m in sys.modules.items() if str(BENCHMARKS) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def test_requests_are_of_every_kind_and_come_again() -> None:
    from hostile import PARAMS, PATHS, hostile

    seen: collections.Counter[str] = collections.Counter()
    for i in range(400):
        one, again = (hostile(random.Random(f"3/{i}")) for _ in range(2))
        data = json.dumps(one.body)
        assert data == json.dumps(again.body)
        assert (one.path, one.leaves) == (again.path, again.leaves)
        seen[one.path] += 1
        seen["left"] += one.leaves is not None
        params = one.body.get("sampling_params")
        seen.update(one.body.keys() | (params.keys() if isinstance(params, dict) else set()))
    constraints = {"json_schema", "regex", "ebnf", "guided_grammar", "guided_choice", "structural_tag"}
    wanted = {
        *PATHS,
        *PARAMS,
        *constraints,
        "left",
        "speculative",
        "stream",
        "logprobs",
        "stop",
        "stop_regex",
    }
    assert wanted <= {name for name, count in seen.items() if count > 0}


@pytest.mark.parametrize(
    ("answer", "outcome", "kept"),
    [
        ({"ended": "whole", "status": 200}, "200", False),
        ({"ended": "error", "status": 400, "code": "bad"}, "400", False),
        ({"ended": "error", "status": 500, "code": "grammar_error"}, "500 grammar_error", True),
        ({"ended": "error", "status": 500, "code": "engine_dead"}, "500 engine_dead", False),
        ({"ended": "error", "status": 503, "code": "queue_full"}, "503 queue_full", False),
        ({"ended": "error", "status": 200, "code": "x"}, "200 with an error event x", True),
        ({"ended": "left"}, "left", False),
        ({"ended": "broken"}, "broken", True),
    ],
)
def test_what_is_kept(answer: dict[str, Any], outcome: str, kept: bool) -> None:
    from client import Answer
    from hostile_requests import Fuzz

    assert Fuzz(0, 1.0, None)._outcome(Answer(**answer)) == (outcome, kept)


def test_all_that_ran_when_the_engine_died_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hostile_requests
    from hostile import hostile

    class Logging:
        log = tmp_path / "server.log"

    Logging.log.write_text("IndexError: list index out of range")
    kept_in = tmp_path / "kept"
    fuzz = hostile_requests.Fuzz(5, 1.0, kept_in)
    requests = {i: hostile(random.Random(f"5/{i}")) for i in (3, 4)}
    fuzz.engine, fuzz.running = 100, {4: requests[4]}
    monkeypatch.setattr(hostile_requests, "engine_of", lambda server: 101)
    fuzz._look_at_engine(Logging(), "trees", 3, requests[3])
    assert sorted(path.name for path in kept_in.iterdir()) == ["5-3.json", "5-3.log", "5-4.json"]
    assert "IndexError" in (kept_in / "5-3.log").read_text()
    kept = json.loads((kept_in / "5-4.json").read_text())
    assert (kept["server"], kept["outcome"], kept["body"]) == ("trees", "the engine died", requests[4].body)
    fuzz._look_at_engine(Logging(), "trees", 3, requests[3])
    assert len(fuzz.found) == 2  # once
