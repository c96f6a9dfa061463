"""The controller on simulated machines, against an oracle that knows what it has to learn; and what it
promises."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from nextn.speculative.costs import StepCosts, StepTimes, StepWork
from nextn.speculative.depth import DepthController, DraftState

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
    assert auto >= 0.97 * oracle
    assert auto >= 0.99 * none


@pytest.mark.parametrize(("machine", "text", "requests"), CHANGING)
def test_regret_on_a_text_that_changes(simulation, machine, text, requests):
    """What is spent on finding out is bounded, so finding out takes its time."""
    auto, oracle, none = speeds(simulation, machine, text, requests, tokens=4000)
    assert auto >= 0.94 * oracle
    assert auto >= 1.02 * none


def speeds(simulation, machine, text, requests, tokens=2500):
    def sim():
        return simulation.Simulation(simulation.MACHINES[machine], simulation.TEXTS[text], requests, seed=7)

    return (
        simulation.run_auto(sim(), 800, tokens).rate,
        simulation.run_fixed(sim(), 800, tokens, None).rate,
        simulation.run_fixed(sim(), 800, tokens, 0).rate,
    )


def test_confidence_pays(simulation):
    """Where a row costs as much as a token, knowing which drafts are good is worth more than the best
    depth."""

    def speed(spread):
        machine, text = simulation.MACHINES["compute-bound"], simulation.TEXTS["medium"]
        sims = [simulation.Simulation(machine, text, 1, seed, spread) for seed in (3, 4, 5)]
        return sum(simulation.run_auto(sim, 800, 2500).rate for sim in sims)

    assert speed(0.5) > 1.02 * speed(0.0)


def test_the_same_history_gives_the_same_choices(simulation):
    def run():
        sim = simulation.Simulation(simulation.MACHINES["experts"], simulation.TEXTS["drifting"], 4, seed=5)
        return simulation.run_auto(sim, 100, 600)

    assert run() == run()


def drive(controller, states, steps, holds, seconds=20e-3):
    """Runs steps in which `holds(request, depth)` says what is accepted; yields kept and proposed."""
    in_hand = [0] * len(states)
    for _ in range(steps):
        kept = controller.cut(states, in_hand)
        depths = controller.propose(states)
        accepted = [next((j for j in range(v) if not holds(i, j)), v) for i, v in enumerate(kept)]
        work = StepWork(len(states) + sum(kept), sum(depths), [1] * max(0, max(depths) - 1))
        target = controller.costs.target(work.rows)
        times = StepTimes(target, controller.costs.extend(work.extended), 0.1e-3 * len(work.passes), 0.0)
        whole = times.target + times.extend + times.draft + controller.costs.fixed
        controller.observe(
            states, kept, accepted, work, StepTimes(times.target, times.extend, times.draft, whole)
        )
        yield kept, depths
        in_hand = depths


def test_depth_that_a_request_asked_for_passes_through():
    controller = DepthController(StepCosts(STEEP, SMALL, SMALL, 0.0))
    states = [DraftState(fixed=3), DraftState(), DraftState(fixed=0), DraftState(fixed=12)]
    for kept, depths in drive(controller, states, 200, lambda i, j: False):
        assert (depths[0], depths[2], depths[3]) == (3, 0, 12)
        assert (kept[0], kept[2], kept[3]) in ((3, 0, 12), (0, 0, 0))  # the first step has nothing in hand


@pytest.mark.parametrize("most", [1, 3, 8])
def test_never_deeper_than_the_most(most):
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0), most=most)
    asked = [d for _, d in drive(controller, [DraftState()], 300, lambda i, j: True)]
    assert max(asked) == [most]


def test_probes_are_bounded_and_come_back():
    """Drafts that never hold are given up; what is spent on trying again is less than a hundredth of the
    time."""
    controller = DepthController(StepCosts(STEEP, SMALL, SMALL, 2e-3))
    states = [DraftState() for _ in range(2)]
    list(drive(controller, states, 400, lambda i, j: False))
    tried = [kept for kept, _ in drive(controller, states, 2000, lambda i, j: False)]
    probes = sum(sum(k) for k in tried)
    assert 0 < probes < 0.01 * 2 * 2000
    back = [sum(d) for _, d in drive(controller, states, 4000, lambda i, j: True)]
    assert sum(back[-100:]) > 100


def test_a_plain_step_now_and_then():
    """Where drafting pays always, the cost of a step without drafts is still looked at."""
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))
    kept = [k[0] for k, _ in drive(controller, [DraftState()], 4000, lambda i, j: j < 4)]
    plain = kept[200:].count(0)
    assert 0 < plain < 0.01 * len(kept)


def test_prompts_in_the_step_are_not_the_drafts_to_pay_for():
    """Drafts that pay by themselves still do beside a long prompt, at the same price a row."""
    costs = StepCosts({1: 1e-3, 1024: 1024e-3}, SMALL, SMALL, 4e-3)
    controller = DepthController(costs)
    states = [DraftState()]
    list(drive(controller, states, 300, lambda i, j: j < 2))
    alone = controller.cut(states, [4], [[-0.01, -0.01, -4.0, -4.0]])
    beside = controller.cut(states, [4], [[-0.01, -0.01, -4.0, -4.0]], rows=500)
    assert alone == beside


def test_owed_rows_put_drafting_off():
    """Catching up costs more than the drafts would gain soon, so it is not done for a little."""
    costs = StepCosts({1: 1e-3, 64: 20e-3}, {1: 0.1e-3, 1024: 500e-3}, SMALL, 0.0)
    controller = DepthController(costs)
    states = [DraftState()]
    list(drive(controller, states, 300, lambda i, j: j < 1))
    assert controller.propose(states)[0] >= 1
    controller, late = DepthController(costs), DraftState()
    controller.acceptance.judged = 1000
    late.owed = 2000
    assert controller.propose([late]) == [0]


@pytest.mark.parametrize("most", [0, 9])
def test_a_depth_out_of_range_is_refused(most):
    with pytest.raises(ValueError, match="automatic depth"):
        DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0), most=most)


def test_nothing_to_decide():
    controller = DepthController(StepCosts(FLAT, SMALL, SMALL, 0.0))
    assert controller.propose([]) == []
    assert controller.cut([], []) == []
