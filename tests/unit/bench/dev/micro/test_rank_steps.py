"""Steps of two ranks: what is counted, on a scripted clock, and a model that cannot be divided."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.checkpoints import random_tensors, tiny_config, write_checkpoint

from nextn.bench.dev.micro import rank_steps
from nextn.bench.dev.micro.rank_steps import RankSteps, measure_rank_steps
from nextn.config import EngineConfig
from nextn.engine.around import Around
from nextn.engine.build import make_executor
from nextn.engine.engine import Engine
from nextn.engine.executor import Ran, Ticket
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors
from nextn.scheduler.plan import Plan
from nextn.waits import Waits


class Waiting(Around):
    """Waits a quarter of a second in each step."""

    def launch(self, plan: Plan) -> Ticket:
        return Ran(dataclasses.replace(super().launch(plan).result(), waits=Waits(group=0.25)))


def test_the_share_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps; the clock is read when they begin, before the last one, and when they end."""
    clock = itertools.count()
    monkeypatch.setattr(rank_steps, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(rank_steps, "tokens_of_text", lambda config: [1, 2, 3])
    monkeypatch.setattr(rank_steps, "REQUESTS", (4, 2, 1))
    monkeypatch.setattr(rank_steps, "STEPS", 4)
    monkeypatch.setattr(rank_steps, "SECONDS", 100)
    config = EngineConfig(model_path="fake", speculative_num_steps=0, max_running_requests=3)
    found = rank_steps._measured(Engine(config, lambda config: Waiting(make_executor(config))))
    assert found == [RankSteps(1, 0.5, 0.5), RankSteps(2, 0.5, 0.5)]
    assert found[0].as_dict() == {"requests": 1, "ms": 500, "waiting": 0.5}


def test_a_model_that_cannot_be_divided(tmp_path: Path) -> None:
    config = tiny_config()  # its hidden size is 32
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(config), 1))
    folder = write_checkpoint(tmp_path, config, tensors)
    assert measure_rank_steps(EngineConfig(model_path=str(folder), threads=2)) is None
