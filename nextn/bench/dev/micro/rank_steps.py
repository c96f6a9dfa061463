"""Measures steps of two ranks (`--tp-size 2`), and the share of their time that is communication.

Ranks wait for each other several times in a layer, and gather their results there. The native kernels measure
this time. In it nothing is computed, so it is the cost of communication, including the time that the faster
rank waits for the slower one.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from nextn.bench.dev.micro.clock import quiet
from nextn.bench.dev.micro.steps import SHORT, Running, prompts_for, tokens_of_text
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.tensor_parallel import TensorParallelExecutor

RANKS = 2
REQUESTS = (64, 8, 1)  # numbers of requests at once; between them some requests are ended
STEPS, SECONDS = 50, 1.0  # limits for each number of requests; it ends when one is reached
FEWEST = 3  # steps


@dataclasses.dataclass(frozen=True)
class RankSteps:
    """Steps with one row for each of `requests` requests. seconds: the mean time of a step. waiting: rank 0's
    share of this time in communication."""

    requests: int
    seconds: float
    waiting: float

    def as_dict(self) -> dict[str, Any]:
        return {"requests": self.requests, "ms": 1e3 * self.seconds, "waiting": self.waiting}


def measure_rank_steps(config: EngineConfig) -> list[RankSteps] | None:
    """Starts a second process, and divides config.threads between the two. Results are in ascending order of
    requests; None if the model cannot be divided."""
    assert config.threads is not None
    config = dataclasses.replace(
        config, tp_size=RANKS, threads=max(1, config.threads // RANKS), speculative_num_steps=0,
        disable_radix_cache=True,
    )  # fmt: skip
    try:
        executor = TensorParallelExecutor(config)
    except ValueError:  # for example an odd number of heads
        return None
    try:
        return _measured(Engine(config, lambda _: executor))
    finally:
        executor.close()


def _measured(engine: Engine) -> list[RankSteps]:
    counts = [n for n in REQUESTS if n <= engine.config.max_running_requests]
    running, found = Running(engine), []
    text = tokens_of_text(engine.config)
    running.add(counts[0], prompts_for(engine, text, len(counts) * (STEPS + 1) + counts[0], SHORT))
    with quiet():
        for count in counts:
            running.keep(count)
            engine.step()
            steps, waited, begin = 0, engine.stats().waited, time.perf_counter()
            while steps < FEWEST or (steps < STEPS and time.perf_counter() - begin < SECONDS):
                engine.step()
                steps += 1
            seconds = time.perf_counter() - begin
            found.append(RankSteps(count, seconds / steps, (engine.stats().waited - waited) / seconds))
    running.keep(0)
    return found[::-1]
