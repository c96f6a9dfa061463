"""What may stand in `SamplingParams`: else a ValueError with the field, its value and the range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams, SpeculativeParams

V = 100
BOUNDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {  # may stand there, and may not
    "max_tokens": ((0, 10**9), (-1, 1.5, math.inf, "9", None)),
    "min_tokens": ((0, 128), (-1, 129, 0.5, math.nan)),
    "temperature": ((0, 0.0, 5e-324, 100, np.float32(0.5)), (-1e-9, 100.1, math.nan, math.inf, "1", 1j)),
    "top_k": ((-1, 0, 1, V, 2**31, 2**70, np.int64(7)), (-2, 2.0, math.nan, "all")),
    "top_p": ((5e-324, 1, 1.0), (0.0, -0.0, 1.1, math.nan, math.inf)),
    "min_p": ((0, 1.0), (-1e-300, 1.1, math.nan)),
    "repetition_penalty": ((5e-324, 1e-39, 1, 2.0), (0.0, -1.0, 2.1, 100.0, math.nan, math.inf)),
    "frequency_penalty": ((-2, 2.0), (-2.1, 2.1, 1e300, math.nan, -math.inf)),
    "presence_penalty": ((-2, 2.0), (-2.1, 2.1, 1e300, math.nan, -math.inf)),
    "seed": ((0, 2**64 - 1), (-1, 2**64, 0.5)),
    "stream": ((0, 2**32 - 1), (-1, 2**32)),
    "stop_token_ids": (((), (0, V - 1)), ((V,), (-1,), (0.5,), tuple(range(65)))),
    "logit_bias": (({}, {0: -100, V - 1: 100.0}), ({V: 0}, {0: math.nan}, {0: 101}, {0.5: 1}, {0: "1"})),
    "logprobs": ((None, 0, 10**9), (-1, 0.5)),
    "prompt_logprobs": ((None, 0, 10**9), (-1, 0.5)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    good, bad = BOUNDS[name]
    for value in good:
        SamplingParams(**{name: value}).check(V)
    for value in bad:
        with pytest.raises(ValueError, match=rf"^{name} is .*; it must be "):
            SamplingParams(**{name: value}).check(V)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_steps", 1.5), ("num_steps", 17), ("accept_threshold_acc", math.nan), ("verify", "exactly")],
)
def test_bounds_of_speculation(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^speculative\.{name} is .*; it must be "):
        SamplingParams(speculative=SpeculativeParams(**{name: value})).check(V)  # type: ignore[arg-type]


def test_the_engine_takes_what_may_stand_there() -> None:
    """And refuses what may not before it has done anything."""
    engine = Engine(EngineConfig(model_path="fake", threads=1, kv_cache_tokens=512, check_integrity=True))
    fine = [
        SamplingParams(max_tokens=2, top_k=2**31),
        SamplingParams(max_tokens=2, top_k=2**70, logprobs=10**9),
    ]
    for i, params in enumerate(fine):
        engine.add(Request(str(i), [5], params))
    while engine.has_work():
        engine.step()
    for tokens in ([5, 1.0], [5, "6"], [2**70], [-1], [4096]):
        with pytest.raises(ValueError, match="the prompt"):
            engine.add(Request("a", tokens, SamplingParams()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="priority is 'high'"):
        engine.add(Request("a", [5], SamplingParams(), priority="high"))  # type: ignore[arg-type]
    assert not engine.has_work()
    engine.check_integrity()
