"""A runner in another process: what it says of itself and refuses is as in this one, and its end is noticed
wherever the engine is then. (Texts and acceptance: tests/e2e/test_identity.py.)"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.engine_runs import executor_of, request, run

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.process import ExecutorError, ProcessExecutor
from nextn.engine.rank import make_runner
from nextn.scheduler.plan import Plan

CONFIG = EngineConfig(model_path="fake:0.9,0.7", speculative_num_steps=2, kv_cache_tokens=256)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(CONFIG, ProcessExecutor)
    yield made
    executor_of(made).close()


def test_it_says_of_itself_what_the_one_here_does(engine: Engine) -> None:
    there, here = executor_of(engine).info, make_runner(CONFIG).info
    assert there.load_seconds > 0
    assert {**vars(there), "load_seconds": 0} == {**vars(here), "load_seconds": 0}


def test_what_the_model_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one page of 16"):
        Engine(EngineConfig(model_path="fake:0.5", kv_cache_tokens=8), ProcessExecutor)


def test_a_step_may_be_launched_before_the_last_ones_result_is_read(engine: Engine) -> None:
    executor, scheduler = executor_of(engine), engine._scheduler
    engine.add(request("a"))
    first = executor.launch(scheduler.plan())
    engine.add(request("b"))
    second = executor.launch(Plan([span for span in scheduler.plan().spans if span.rid == "b"]))
    [later], [earlier] = second.result().spans, first.result().spans
    assert later.tokens == earlier.tokens


@pytest.mark.parametrize("when", ["idle", "planned", "launched"])
def test_its_end_is_noticed(engine: Engine, when: str) -> None:
    executor = executor_of(engine)
    engine.add(request("a"))
    engine.step()

    def end() -> None:
        os.kill(executor.process.pid, signal.SIGKILL)
        executor.process.join(10)

    if when == "idle":
        end()
        with pytest.raises(ExecutorError, match=r"has ended \(exit code -9\)"):
            run(engine)
        return
    plan = engine._scheduler.plan()
    if when == "planned":
        end()
        with pytest.raises(ExecutorError, match="has ended"):
            executor.launch(plan).result()
        return
    executor.process.join(0)
    os.kill(executor.process.pid, signal.SIGSTOP)  # so that it is in the middle of a step
    ticket = executor.launch(plan)
    end()
    with pytest.raises(ExecutorError, match="has ended"):
        ticket.result()


def test_what_it_raises_ends_it(engine: Engine) -> None:
    executor = executor_of(engine)
    engine.add(request("a"))
    plan = engine._scheduler.plan()
    plan.spans[0].rid = "nobody"
    with pytest.raises(ExecutorError, match="KeyError: 'nobody'"):
        executor.launch(plan).result()
    with pytest.raises(ExecutorError, match=r"has ended \(exit code 0\)"):
        executor.launch(plan).result()


def test_it_ends_with_its_executor(engine: Engine) -> None:
    engine.add(request("a"))
    assert len(run(engine)) == 12
    executor = executor_of(engine)
    executor.close()
    assert executor.process.exitcode == 0
