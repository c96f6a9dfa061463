"""benchmarks/gate_simulation.py: its gate does what nextn/gate.py says; fixed depths are as fast as said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.script_modules import script_modules

from nextn.gate import EDGES, Gate

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from script_modules(monkeypatch, BENCHMARKS, ("depth_simulation", "gate_simulation"))


def chains(
    scripts: Any, depths: list[int], leads: str, **changed: float
) -> tuple[list[tuple[str, int]], list]:
    """The bins of each chain's guesses and how many are kept, where bins 0, 1 and 2 hold in 0.1, 0.5 and 1 of
    all cases."""
    gate = Gate((0.1, 0.5, *[1.0] * (len(EDGES) - 1)), keep=0.0, usual=0.8, each=0.0, passing=0.0)
    bins = iter(map(int, leads))
    found, passes = scripts.gate_simulation.guess(gate._replace(**changed), depths, lambda: next(bins))
    assert next(bins, None) is None  # as many guesses as were foreseen
    return [("".join(map(str, c.bins)), c.kept) for c in found], passes


def test_a_guess_is_kept_as_long_as_all_of_the_chain_holds_often_enough(scripts: Any) -> None:
    """0.5, 0.25, and 0.125 is too little: that guess was made, and nothing follows it."""
    assert chains(scripts, [5], "111", keep=0.2) == ([("111", 2)], [1, 1])
    assert chains(scripts, [5], "0", keep=0.2) == ([("0", 0)], [])


def test_a_guess_more_must_be_worth_itself_and_its_row(scripts: Any) -> None:
    """After the second one, 0.25 holds, and a further one does in 0.2 of all cases."""
    assert chains(scripts, [5], "11", each=0.21) == ([("11", 2)], [1])
    assert chains(scripts, [5], "111", each=0.19) == ([("111", 3)], [1, 1])


def test_all_chains_together_must_be_worth_a_pass(scripts: Any) -> None:
    """One that is sure comes to 0.8, two of them to 1.6; a sure one and one that holds in half to 1.2."""
    assert chains(scripts, [5], "2", passing=0.9) == ([("2", 1)], [])
    assert chains(scripts, [5, 5], "222120", passing=0.9) == ([("222", 3), ("210", 3)], [2, 2])


def test_nobody_gets_more_guesses_than_asked_for(scripts: Any) -> None:
    found, passes = chains(scripts, [0, 1, 3], "2" * 4)
    assert found == [("", 0), ("2", 1), ("222", 3)]
    assert passes == [1, 1]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_fixed_depth_is_as_fast_as_steps_of_it(scripts: Any, depth: int) -> None:
    simulation = scripts.gate_simulation
    machine, text = simulation.GATED_MACHINES["busy host"], simulation.GATED_TEXTS["medium"]
    sim = simulation.GatedSimulation(machine, text, 8)
    tokens = seconds = 0.0
    for step in range(1000):
        expected, _, work = sim.step([depth] * 8)
        if step:  # the first one has nothing to verify
            tokens, seconds = tokens + expected, seconds + machine.seconds(work)
    assert tokens / seconds == pytest.approx(simulation.fixed_rate(machine, text, 8, depth), rel=0.01)
