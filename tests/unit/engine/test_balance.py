"""An engine whose experts move while it serves: its texts are the same, and it ends when a rank does while
others wait for it. (Bits: tests/parity/test_live_balance.py.)"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator

import pytest
from support.engine_runs import executor_of, request
from support.native_kernels import built_levels

from nextn.config import EngineConfig
from nextn.distributed.group import PeerGone
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
    """Its rank is stopped by the last test."""
    made = Engine(BALANCED)
    yield made
    executor_of(made).close()


def steps(engine: Engine) -> None:
    while True:
        engine.step()


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


def test_a_rank_that_is_gone_ends_all(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other waits for it in a rebalancing."""
    balancer, [process] = balancer_of(engine), executor_of(engine).processes.values()
    look = balancer._look

    def killing() -> None:
        os.kill(process.pid, signal.SIGSTOP)
        look()

    monkeypatch.setattr(balancer, "_look", killing)
    engine.add(request("a", tokens=900))
    began = time.monotonic()
    with pytest.raises(PeerGone, match=r"rank 1 (has ended|does not answer)"):
        steps(engine)
    assert time.monotonic() - began < 60
