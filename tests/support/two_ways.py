"""An engine that runs every step twice, each time with its own cache: in one call, and as `Runner` does
it."""

from __future__ import annotations

import copy
import random
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from nextn.config import EMBEDDED, EngineConfig
from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT
from nextn.engine.engine import Engine
from nextn.engine.executor import Ran
from nextn.engine.runner import Runner
from nextn.request import Request, SamplingParams
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.state import RequestState

Work = Mapping[str, tuple[list[int], SamplingParams]]


class TwoWays:
    """The executor of both. plain, general: numbers of steps that ran in one call, and that did not."""

    awake, wakes, world, waited = False, None, None, 0.0

    def __init__(self, one_call: Runner, general: Runner) -> None:
        assert one_call.plain is not None
        general.plain = None
        for runner in (one_call, general):  # measurements of step times have written to it
            runner.pool.data.zero_()
        self.one_call, self.other, self.info = one_call, general, one_call.info
        self.plain = self.general = 0
        self.results: list[StepResult] = []
        run = one_call.plain.run

        def counted(states: Sequence[RequestState], plan: Plan) -> StepResult | None:
            found = run(states, plan)
            if found is None:
                self.general += 1
            else:
                self.plain += 1
            return found

        one_call.plain.run = counted  # type: ignore[method-assign]

    def add(self, state: RequestState) -> None:
        self.other.add(copy.deepcopy(state))
        self.one_call.add(state)

    def drop(self, rid: str) -> None:
        self.one_call.drop(rid)
        self.other.drop(rid)

    def launch(self, plan: Plan) -> Ran:
        result, again = self.one_call.run(plan), self.other.run(copy.deepcopy(plan))
        assert result == again
        for mine, theirs in zip(result.spans, again.spans, strict=True):  # NO_DRAFT: no draft was wanted
            assert (mine.draft is NO_DRAFT) == (theirs.draft is NO_DRAFT)
        one, other = (r.pool.data.view(torch.int16) for r in (self.one_call, self.other))
        assert torch.equal(one, other)
        self.results.append(result)
        return Ran(result)

    def check(self) -> None:
        pass

    def expert_counts(self) -> None:
        return None


class Depth:
    """Automatic depth that a test controls. off: numbers of steps that do not draft."""

    keeping, state = True, None

    def __init__(self, num_steps: int, cutoff: Cutoff | None, off: Container[int] = ()) -> None:
        self.num_steps, self.cutoff, self.off, self.steps = num_steps, cutoff, off, 0

    @property
    def drafting(self) -> bool:
        return self.steps not in self.off

    def note(self, draft: object, accepted: int) -> None:
        pass

    def stepped(self, work: object, seconds: float | None, own: bool, drafting: bool) -> None:
        self.steps += 1


def two_ways(num_steps: int, **options: Any) -> tuple[Engine, TwoWays]:
    """An engine with the embedded model, unless options say otherwise, and its executor."""
    settings = {
        "model_path": EMBEDDED,
        "page_size": 4, "kv_cache_tokens": 1024, "chunked_prefill_size": 16, "max_running_requests": 8,
        "threads": 1, "check_integrity": True, "kernel_backend": "cpu", "speculative_num_steps": num_steps,
    }  # fmt: skip
    config = EngineConfig(**{**settings, **options})  # type: ignore[arg-type]
    engine, other = Engine(config), Engine(config)
    one_call, general = engine._executor, other._executor
    assert isinstance(one_call, Runner)
    assert isinstance(general, Runner)
    both = TwoWays(one_call, general)
    engine._executor = engine._scheduler.states = both  # type: ignore[assignment]
    return engine, both


def run(engine: Engine, work: Work, seed: int = 0) -> None:
    """Runs all requests to their ends. They arrive a few at a time."""
    rng = random.Random(seed)
    waiting = list(work.items())
    while waiting or engine.has_work():
        while waiting and (not engine.has_work() or rng.random() < 0.5):
            rid, (prompt, params) = waiting.pop(0)
            engine.add(Request(rid, list(prompt), params))
        engine.step()
