"""An engine of several ranks: what it refuses, and that a rank that ends, stops or fails ends all of them,
wherever the engine is then. (Texts and acceptance: tests/e2e/test_identity.py.)"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.all_cases import few_or_all
from support.engine_runs import executor_of, go_on, request, run
from support.native_kernels import built_levels
from support.processes import children, runs

from nextn.config import EngineConfig
from nextn.distributed import process
from nextn.distributed.group import PeerGone
from nextn.engine import tensor_parallel
from nextn.engine.engine import Engine

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

CONFIG = EngineConfig(
    tp_size=2, threads=1, speculative_num_steps=2, kv_cache_tokens=1024, check_integrity=True,
    step_cost_cache="off",
)  # fmt: skip


def test_a_rank_that_is_stopped_ends_all() -> None:
    """Within seconds, and nobody hangs, though nothing is to be done. (One that is killed:
    tests/e2e/test_tensor_parallel.py.)"""
    engine = Engine(dataclasses.replace(CONFIG, ep_size=2))
    [rank] = executor_of(engine).processes.values()
    engine.add(request("a", tokens=900))
    engine.step()
    engine.abort("a")
    os.kill(rank.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(PeerGone, match="rank 1 is stopped"):
        go_on(engine)
    assert time.monotonic() - began < 60  # about 3 s; how busy the machine is, nobody knows
    executor_of(engine).close()
    assert not runs(rank.pid)
    with pytest.raises(PeerGone):
        engine.check()


@pytest.mark.parametrize(
    ("options", "said"),
    few_or_all(
        [
            ({"tp_size": 3}, "--tp-size 3: the model's 4 heads cannot be divided by it"),
            ({"tp_size": 0}, "--tp-size is 0: it must be between 1 and 64"),
            ({"tp_size": 65}, "--tp-size is 65: it must be between 1 and 64"),
        ],
        [({"tp_size": 2, "kv_cache_tokens": 8}, "less than one page of 16")],
    ),
)
def test_what_cannot_be_is_refused_and_leaves_no_process(options: dict[str, Any], said: str) -> None:
    before = children(os.getpid())
    with pytest.raises(ValueError, match=said):
        Engine(EngineConfig(threads=1, **options))
    assert children(os.getpid()) <= before


def test_a_rank_that_ended_before_it_was_needed() -> None:
    process.start_early(process.RANK, 1)
    early = process._early[0].popen
    early.kill()
    early.wait()
    with pytest.raises(PeerGone, match=r"rank 1 has ended \(signal 9\)"):
        Engine(CONFIG)


def test_threads_are_shared_out_and_ranks_end_with_their_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The debug switch compares what ranks found after every step."""
    made = Engine(dataclasses.replace(CONFIG, threads=None))
    assert executor_of(made).info.threads == max(1, len(os.sched_getaffinity(0)) // 2)
    made.add(request("a"))
    assert len(run(made)) == 12
    made.add(request("b"))
    made.step()
    monkeypatch.setattr(tensor_parallel, "digest", lambda result: b"another")
    with pytest.raises(AssertionError, match="rank 1 found another result than rank 0"):
        run(made)
    [rank] = executor_of(made).processes.values()
    executor_of(made).close()
    assert not runs(rank.pid)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    """Nor is what starts an engine run again in its ranks: notebooks and stdin work too."""
    lines = (
        "from nextn.llm import LLM",
        "from nextn.request import SamplingParams",
        "llm = LLM(tp_size=2, threads=1, kv_cache_tokens=1024, speculative_num_steps=0)",
        "print(len(llm.generate(['def a():'], SamplingParams(max_tokens=5, ignore_eos=True))[0].token_ids))",
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert (done.stdout, done.stderr) == ("5\n", "")
