"""What a profile records of the engine's steps, on the fake model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.trace import TRACE, Interval


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    TRACE.take()


def run(engine: Engine, requests: int = 3) -> list[list[int]]:
    texts: dict[str, list[int]] = {}
    for i in range(requests):
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        engine.add(Request(f"{i}", [5 + i, 6, 7], params))
    while engine.has_work():
        for out in engine.step():
            texts.setdefault(out.rid, []).extend(out.tokens)
    return [texts[rid] for rid in sorted(texts)]


def made() -> Engine:
    return Engine(EngineConfig("fake:1,1", threads=1, kv_cache_tokens=2048, speculative_num_steps=2))


def inside(each: Interval, other: Interval) -> bool:
    return other.begin <= each.begin <= each.end <= other.end


def test_a_step() -> None:
    engine = made()
    expected = run(made())
    TRACE.start("engine")
    assert run(engine) == expected
    found = TRACE.take()
    steps = [each for each in found.intervals if each.name == "step"]
    assert len(steps) == found.steps == engine.stats().steps > 2
    for step in steps:  # the next one may be launched in it before the result is read
        parts = [each for each in found.intervals if inside(each, step) and each is not step]
        loop = [each.name for each in parts if each.lane == "engine"]
        assert loop[-2:] == ["result", "commit"]
        assert set(loop[:-2]) <= {"plan", "launch"}
    names = Counter(each.name for each in found.intervals)
    assert names["launch"] == names["forward"] == names["choose and verify"] == names["draft"] == len(steps)
    launches = [each for each in found.intervals if each.name == "launch"]
    for each in found.intervals:
        if each.lane == "runner" and each.thread == steps[0].thread:
            assert any(inside(each, launch) for launch in launches)
    assert steps[0].args["requests"] == 3
    assert steps[0].args["decoding"] == 3  # each prompt's last part chooses
    assert steps[1].args["drafts"] == 6
    assert steps[1].args["rows"] == 9
    assert sum(int(str(step.args["tokens"])) for step in steps) == 36


def test_as_many_steps_as_are_wanted() -> None:
    engine = made()
    TRACE.start("engine", steps=2)
    run(engine)
    found = TRACE.take()
    assert found.steps == sum(each.name == "step" for each in found.intervals) == 2


def test_no_profile_no_intervals() -> None:
    run(made())
    assert TRACE.take().intervals == []
