"""What steps cost, timed at start-up: on a clock that only the steps move it finds their costs; in real
engines of every kind it fits what there is and leaves nothing behind."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parity.oracle import more_layers

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.draft import NO_DRAFT, Draft
from nextn.engine import build, step_timing
from nextn.engine.engine import Engine
from nextn.engine.executor import Ran
from nextn.engine.step_timing import time_steps
from nextn.request import Request, SamplingParams
from nextn.scheduler.plan import Plan, SpanResult, StepResult
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.state import RequestState
from nextn.speculative.work import StepWork
from nextn.waits import Waits

PAGE = 16
COST = StepCost(2e-3, 1e-4, 5e-4, (8, 2), a_pass=3e-4, pass_row=2e-5, request=5e-5)


class Clock:
    """Time that steps take, and looking at it."""

    def __init__(self) -> None:
        self.now, self.look = 0.0, 1e-9

    def perf_counter(self) -> float:
        self.now += self.look
        return self.now


class Steps:
    """An executor whose steps take what a cost says; every second guess holds. late: seconds by which other
    groups are late in every second step."""

    def __init__(
        self, clock: Clock, cost: StepCost, tokens: int = 1 << 17, busy: float = 0.0, late: float = 0.0
    ) -> None:
        self.clock, self.cost, self.busy, self.late = clock, cost, busy, late
        pages = tokens // PAGE
        self.info = SimpleNamespace(vocab_size=99, experts=(8, 2), page_size=PAGE, pages=pages, device="cpu")
        self.sizes: list[int] = []
        self.states: dict[str, RequestState] = {}
        self.count = 0

    def add(self, state: RequestState) -> None:
        self.states[state.rid] = state

    def drop(self, rid: str) -> None:
        del self.states[rid]

    def launch(self, plan: Plan) -> Ran:
        spans = plan.spans
        self.sizes.append(len(spans))
        self.count += 1
        for s in spans:
            assert min(s.pages) > 0
            assert (max(s.pages) + 1) * PAGE <= (self.info.pages + 1) * PAGE
            assert s.start + s.known + len(s.draft) + 4 <= len(s.pages) * PAGE
            assert s.start + s.known == len(self.states[s.rid].history)
        assert list(self.states) == [s.rid for s in spans]
        n, drafts = len(spans), sum(len(s.draft) for s in spans)
        made, prompts = spans[0].num_steps, sum(s.known - 1 for s in spans)
        extended = n + prompts + drafts // 2 if spans[0].extend else 0
        context = sum(s.start for s in spans)
        work = StepWork(n + prompts + drafts, extended, (n,) * (made - 1), n, drafts, context)
        # A neighbour takes its share of two steps in three.
        seconds = self.cost.base(work) + self.cost.extra(work)
        self.clock.now += seconds * (1.0 + self.busy * (self.count % 3 > 0))
        guesses = Draft([3] * made) if made else NO_DRAFT
        late = self.late * (self.count % 2)
        self.clock.now += late
        waits = Waits(step=late, combine=seconds / 2, others=late)
        return Ran(StepResult([SpanResult([5], guesses) for _ in spans], work, waits))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(step_timing, "time", made)
    return made


def timed(steps: Steps, drafts: bool = True, **limits: int) -> tuple[StepCost, bool]:
    ample = {"max_requests": 512, "token_budget": 4096, "context": 4096, "beyond": 0}
    return time_steps(steps, drafts=drafts, **{**ample, **limits})  # type: ignore[arg-type]


def test_costs_are_those_of_the_steps(clock: Clock) -> None:
    found, calm = timed(Steps(clock, COST))
    assert calm
    assert found.experts == (8, 2)
    for n in (1, 3, 16, 64):
        for work in (StepWork(n, 0, (), n, 0), StepWork(3 * n, 2 * n, (n, n), n, 2 * n)):
            assert found.base(work) == pytest.approx(COST.base(work), rel=0.01)
            assert found.extra(work) == pytest.approx(COST.extra(work), rel=0.02)
    assert found.context == pytest.approx(0.0, abs=1e-8)
    # A row of a prompt is one of the drafter's pass here; the last one is not a prompt's alone.
    assert found.prompt_row == pytest.approx(31 / 32 * COST.pass_row, rel=0.02)


def test_without_drafts_less_is_measured(clock: Clock) -> None:
    steps, without = Steps(clock, COST), Steps(clock, COST)
    timed(steps)
    found, calm = timed(without, drafts=False)
    assert calm
    assert without.count < steps.count / 4
    for n in (1, 3, 16, 64):
        assert found.rows(n) == pytest.approx(COST.rows(n), rel=0.01)
    assert found.drafting(2, 8) == 0.0


def test_positions_that_are_read_cost_something(clock: Clock) -> None:
    cost = StepCost(2e-3, 1e-3, context=1e-6, a_pass=1e-4, attention=3e-6)
    found, _ = timed(Steps(clock, cost))
    assert found.context == pytest.approx(1e-6, rel=0.2)
    assert found.attention == pytest.approx(3e-6, rel=0.1)


def test_a_busy_machine_is_noticed_and_only_adds_to_times(clock: Clock) -> None:
    found, calm = timed(Steps(clock, COST, busy=0.9))
    assert not calm
    assert found.rows(4) == pytest.approx(COST.rows(4), rel=0.02)


def test_time_in_which_other_groups_are_late_does_not_count(clock: Clock) -> None:
    """They measure at the same time, or load for longer."""
    found, calm = timed(Steps(clock, COST, late=0.05))
    assert calm
    work = StepWork(24, 16, (8, 8), 8, 16)
    assert found.base(work) == pytest.approx(COST.base(work), rel=0.01)
    assert found.extra(work) == pytest.approx(COST.extra(work), rel=0.02)


def test_a_slow_model_is_not_timed_for_long(clock: Clock) -> None:
    """No new number of requests after half a second, but one to the end: costs must come from somewhere."""
    steps = Steps(clock, StepCost(0.5, 0.01, a_pass=0.01))
    found, _ = timed(steps)
    assert set(steps.sizes) == {1}
    assert found.rows(1) == pytest.approx(0.51, rel=0.01)
    assert found.extra(StepWork(3, 2, (1,), 1, 2)) > 0.0


@pytest.mark.parametrize(
    ("limits", "tokens", "most"),
    [
        ({}, 1 << 17, 64),
        ({"max_requests": 5}, 1 << 17, 4),
        ({"max_requests": 1}, 1 << 17, 1),
        ({"token_budget": 80}, 1 << 17, 16),
        ({"token_budget": 16}, 1 << 17, 2),
        ({}, 600, 8),
        ({"beyond": 512}, 1200, 2),
        ({}, PAGE, 1),
        ({"context": 1}, 1 << 17, 64),
    ],
)
def test_it_fits_what_there_is(clock: Clock, limits: dict[str, int], tokens: int, most: int) -> None:
    steps = Steps(clock, StepCost(1e-4, 1e-6, a_pass=1e-6), tokens)
    timed(steps, **limits)
    assert max(steps.sizes) == most
    assert not steps.states


ENGINES: dict[str, dict[str, Any]] = {
    "chains": {},
    "trees": {"speculative_eagle_topk": 2},
    "wide trees": {"speculative_eagle_topk": 8, "speculative_num_draft_tokens": 64},
    "n-grams": {"speculative_algorithm": "NGRAM"},
    "both": {"speculative_algorithm": "NEXTN+NGRAM"},
    "a tiny pool": {"kv_cache_tokens": 32, "page_size": 16},
    "one page": {"kv_cache_tokens": 16, "page_size": 16},
    "large pages": {"page_size": 1024},
    "one request": {"max_running_requests": 1},
    "a tiny context": {"context_length": 8},
    "a small budget": {"chunked_prefill_size": 16, "max_running_requests": 4},
    "no prefix cache": {"disable_radix_cache": True},
}


def engine(path: str, **options: Any) -> Engine:
    options |= {"threads": 1, "step_cost_cache": "off", "check_integrity": True}
    return Engine(EngineConfig(model_path=path, **options))


def text(made: Engine, prompt: list[int]) -> list[int]:
    tokens: list[int] = []
    made.add(Request("0", list(prompt), SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)))
    while made.has_work():
        for out in made.step():
            tokens += out.tokens
    return tokens


PROMPT = [5, 6, 7]


@cache
def plain_text(path: str) -> list[int]:
    return text(engine(path, speculative_algorithm="NONE"), PROMPT)


# Pages and contexts are the same to any model; the fake one drafts chains and trees in ways of its own.
ON_FAKE = ("chains", "trees", "large pages", "a tiny context", "no prefix cache")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("fake:0.5,0.5", kind) for kind in ON_FAKE]
    + [(EMBEDDED, kind) for kind in ENGINES if kind not in ON_FAKE[2:]],
)
def test_engines_of_every_kind(clock: Clock, path: str, kind: str) -> None:
    """By a clock on which each step takes 20 ms."""
    options = ENGINES[kind]
    clock.look = 1e-2
    made = engine(path, **options)
    auto = made._scheduler.depth.auto
    assert auto is not None
    assert auto.cost.rows(1) > 0.0
    stats = made.stats()
    assert (stats.steps, stats.generated_tokens, stats.spec.verify_steps, stats.used_tokens) == (0, 0, 0, 0)
    made.check_integrity()
    drafter = made._executor.drafter
    assert not made._executor.states
    for part in (drafter, getattr(drafter, "nextn", None)):
        assert not len(getattr(part, "behind", ()))
    assert text(made, PROMPT) == plain_text(path)


def test_several_layers_leave_nothing(clock: Clock, tmp_path: Path) -> None:
    clock.look = 1e-2
    folder = more_layers(model_folder(EMBEDDED), tmp_path / "three", 3)
    made = engine(str(folder))
    drafter: Any = made._executor.drafter
    assert not made._executor.states
    assert not len(drafter.behind)
    assert text(made, PROMPT) == plain_text(EMBEDDED)


def test_only_automatic_depth_times_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "time_steps", None)
    assert engine("fake:0.5", speculative_num_steps=2)._scheduler.depth.auto is None
    assert engine("fake:0.5", speculative_algorithm="NONE")._scheduler.depth.auto is None
