"""The controller on simulated machines, against an oracle that knows what it has to learn; and what it
promises."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nextn.speculative.costs import StepCosts, StepWork
from nextn.speculative.depth import DepthController, DraftState
from nextn.speculative.measured import batch_class

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FLAT = {1: 20e-3, 64: 20.1e-3}  # rows cost nothing
STEEP = {1: 1e-3, 64: 64e-3}  # rows cost in full
SMALL = {1: 0.1e-3}


@pytest.fixture(scope="module")
def simulation() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    import depth_simulation

    yield depth_simulation
    sys.path.remove(str(BENCHMARKS))
    del sys.modules["depth_simulation"]


# machine, text, requests
STEADY = [
    ("memory-bound", "easy", 1),
    ("memory-bound", "medium", 1),
    ("memory-bound", "medium", 16),
    ("memory-bound", "hard", 4),
    ("memory-bound", "hopeless", 4),
    ("compute-bound", "easy", 1),
    ("compute-bound", "hard", 4),
    ("tiles of 6", "easy", 1),
    ("tiles of 6", "easy", 4),
    ("experts", "medium", 1),
    ("experts", "easy", 4),
    ("experts", "two kinds", 16),
    ("tiny", "hard", 4),
]
CHANGING = [("memory-bound", "drifting", 4), ("experts", "drifting", 1), ("tiles of 6", "hard, then easy", 4)]


@pytest.mark.parametrize(("machine", "text", "requests"), STEADY)
def test_regret_on_a_steady_text(simulation, machine, text, requests):
    auto, oracle, none = speeds(simulation, machine, text, requests)
    assert auto >= 0.96 * oracle
    assert auto >= 0.98 * none


@pytest.mark.parametrize(("machine", "text", "requests"), CHANGING)
def test_regret_on_a_text_that_changes(simulation, machine, text, requests):
    """What is spent on finding out is bounded, so finding out takes its time."""
    auto, oracle, none = speeds(simulation, machine, text, requests, tokens=4000)
    assert auto >= 0.94 * oracle
    assert auto >= 1.02 * none


def speeds(simulation, machine, text, requests, tokens=2500):
    def sim():
        return simulation.DepthSimulation(
            simulation.MACHINES[machine], simulation.TEXTS[text], requests, seed=7
        )

    return (
        simulation.run_auto(sim(), 800, tokens).rate,
        simulation.run_fixed(sim(), 800, tokens, None).rate,
        simulation.run_fixed(sim(), 800, tokens, 0).rate,
    )


def test_the_same_history_gives_the_same_choices(simulation):
    def run():
        sim = simulation.DepthSimulation(
            simulation.MACHINES["experts"], simulation.TEXTS["drifting"], 4, seed=5
        )
        return simulation.run_auto(sim, 100, 600)

    assert run() == run()


def drive(controller, states, steps, holds, seconds=lambda work: None):
    """Runs steps in which `holds(request, depth)` says what is accepted; yields the depths of each step.
    seconds: of a step's work; None: as the table says."""
    for state in states:
        controller.enter(state)
    in_hand = [0] * len(states)
    for _ in range(steps):
        depths = [s.depth for s in states]
        for i, (s, v) in enumerate(zip(states, in_hand, strict=True)):
            if v:
                s.note(v, next((j for j in range(v) if not holds(i, j)), v))
        passes = [sum(d > j for d in depths) for j in range(1, max(depths))]
        work = StepWork(len(states) + sum(in_hand), sum(d > 0 for d in depths), passes)
        controller.step(work, seconds(work) or controller.costs.step(work))
        if controller.due(len(states)):
            controller.plan(states)
        yield depths
        in_hand = depths


def test_depth_that_a_request_asked_for_passes_through():
    controller = DepthController(StepCosts(STEEP, SMALL, SMALL, 0.0))
    states = [DraftState(fixed=3), DraftState(), DraftState(fixed=0), DraftState(fixed=12)]
    for depths in drive(controller, states, 200, lambda i, j: False):
        assert (depths[0], depths[2], depths[3]) == (3, 0, 12)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_never_deeper_than_the_most(most):
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0), most=most)
    asked = [d for (d,) in drive(controller, [DraftState()], 300, lambda i, j: True)]
    assert max(asked) == most


def test_what_steps_turn_out_to_take_overrules_the_table():
    """The table says that rows cost nothing; steps with drafts take more than twice as long, for twice the
    tokens."""
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))

    def seconds(work):
        return 20e-3 if work.rows == 2 else 46e-3

    asked = [
        sum(d) for d in drive(controller, [DraftState(), DraftState()], 2500, lambda i, j: j < 1, seconds)
    ]
    assert sum(asked[:30]) > 30
    assert sum(asked[-500:]) < 100


def test_trials_are_bounded_and_come_back():
    """Drafts that never hold are given up; what is spent on trying again is about a hundredth of the time."""
    controller = DepthController(StepCosts(STEEP, SMALL, SMALL, 2e-3))
    states = [DraftState() for _ in range(2)]
    list(drive(controller, states, 400, lambda i, j: False))
    tried = [sum(d) for d in drive(controller, states, 4000, lambda i, j: False)]
    assert 0 < sum(tried) < 0.02 * 2 * 4000
    back = [sum(d) for d in drive(controller, states, 4000, lambda i, j: True)]
    assert sum(back[-100:]) > 100


def test_fewer_drafts_are_tried_too():
    """Where drafting pays always, how long steps with fewer drafts take is looked at, and not for long."""
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0), most=1)
    asked = [d for (d,) in drive(controller, [DraftState()], 6000, lambda i, j: True)]
    assert 0 < sum(d < 1 for d in asked) < 0.03 * len(asked)


def test_owed_rows_put_drafting_off():
    """Catching up costs more than the drafts would gain soon, so it is not done for a little."""
    costs = StepCosts({1: 1e-3, 64: 20e-3}, {1: 0.1e-3, 1024: 500e-3}, SMALL, 0.0)
    controller = DepthController(costs)
    states = [DraftState()]
    *_, (depth,) = drive(controller, states, 300, lambda i, j: j < 1)
    assert depth >= 1
    controller, late = DepthController(costs), DraftState()
    controller.acceptance.judged = 1000
    controller.measured.note(batch_class(1), 0.0, 1.0)
    late.owed = 2000
    controller.plan([late])
    assert late.depth == 0


def test_a_new_request_gets_what_others_like_it_get():
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))
    states = [DraftState() for _ in range(4)]
    *_, depths = drive(controller, states, 600, lambda i, j: j < 3)
    new, asked = DraftState(), DraftState(fixed=1)
    controller.enter(new)
    controller.enter(asked)
    assert new.depth in {d + more for d in depths for more in (-1, 0, 1)}
    assert asked.depth == 1


def test_a_new_batch_size_is_planned_for_at_once():
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))
    states = [DraftState() for _ in range(16)]
    list(drive(controller, states, 30, lambda i, j: True))
    controller.step(StepWork(16), 1.0)  # thinking is paid for
    assert not controller.due(16)
    assert not controller.due(15)
    assert controller.due(8)


@pytest.mark.parametrize("most", [0, 9])
def test_a_depth_out_of_range_is_refused(most):
    with pytest.raises(ValueError, match="automatic depth"):
        DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0), most=most)


def test_nothing_to_decide():
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))
    controller.plan([])
    assert not controller.due(0)


def test_steps_are_not_piled_up_where_each_ends_its_requests():
    """As when all ask for one token: it is time to plan, and there is nobody to plan for."""
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))
    for _ in range(1000):
        controller.step(StepWork(30, requests=1), 20e-3)
        if controller.due(1):
            controller.plan([])
    assert len(controller._ratios) < 100
