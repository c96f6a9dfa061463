"""An engine whose experts move while it serves: its texts are the same. (Bits:
tests/parity/test_live_balance.py. Ranks that end: tests/unit/engine/test_ep_faults.py.)"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from support.engine_runs import executor_of
from support.native_kernels import built_levels

from nextn.config import EngineConfig
from nextn.engine.balance import Balancer
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

CONFIG = EngineConfig(threads=1, kv_cache_tokens=1024, step_cost_cache="off", speculative_num_steps=2)
BALANCED = dataclasses.replace(
    CONFIG, tp_size=2, ep_size=2, ep_num_redundant_experts=2, enable_eplb=True,
    eplb_rebalance_num_iterations=3, check_integrity=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine(BALANCED)
    yield made
    executor_of(made).close()


def balancer_of(engine: Engine) -> Balancer:
    found: Balancer = executor_of(engine)._runner.together.balancer
    return found


def test_texts_are_the_same(engine: Engine) -> None:
    found = []
    for made in (engine, Engine(CONFIG)):
        tokens: dict[str, list[int]] = {f"{i}": [] for i in range(3)}
        for i, rid in enumerate(tokens):
            made.add(Request(rid, [5, 6 + i], SamplingParams(max_tokens=20 + i, temperature=0.0)))
        while made.has_work():
            for out in made.step():
                tokens[out.rid] += out.tokens
        found.append(tokens)
    assert found[0] == found[1]
    assert balancer_of(engine).rebalancings >= 1
    assert balancer_of(engine).moved >= 1
    phases = engine.stats().phases
    assert phases.keys() == {"prefill", "decode"}
    for phase in phases.values():
        waits = phase.waits
        assert min(waits.step, waits.dispatch, waits.combine, waits.group) > 0
        assert (waits.slices, waits.others) == (0, 0)  # each expert is on one rank; there is one group
        assert waits.total < phase.steps
    assert phases["decode"].waits.moves > 0
    assert made.stats().phases == {}
