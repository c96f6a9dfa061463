"""The cutoff on the device ends and keeps the chains that `CutChains` does."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nextn.cutoff import NO_GUESS, CutChains, Cutoff, bins
from nextn.speculative.device.cutoff import DeviceCutChains, bins_of, edges

unit = st.floats(0.0, 1.0, width=32)
cutoffs = st.builds(
    Cutoff, st.lists(unit, min_size=NO_GUESS, max_size=NO_GUESS), row_cost=unit, mean_rate=unit,
    guess_cost=st.floats(0.0, 0.5, width=32), pass_cost=st.floats(0.0, 3.0, width=32),
)  # fmt: skip
chains = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6)


@given(cutoffs, chains, st.data())
def test_chains_are_those_of_the_host(cutoff, chains, data):
    places = [i for i, (_, cut) in enumerate(chains) if cut]
    if not places:
        return
    steps = [n for n, _ in chains]
    rule = CutChains(cutoff, [steps[i] for i in places])
    numbers = torch.tensor(cutoff.numbers, dtype=torch.float32)
    on_device = DeviceCutChains(numbers, torch.tensor(steps), torch.tensor([cut for _, cut in chains]))
    for depth in range(1, 6):
        guess_bins = data.draw(st.lists(st.integers(0, NO_GUESS), min_size=len(chains), max_size=len(chains)))
        others = any(n > depth and not cut for n, cut in chains)
        before = on_device.going.clone()
        rule.guessed(bytes(guess_bins[places[n]] for n in rule.going), others)
        found = torch.tensor([f != NO_GUESS for f in guess_bins])
        on_device.guessed(torch.tensor(guess_bins).clamp(max=NO_GUESS - 1), found, torch.tensor(others))
        same = on_device.going.nonzero()[:, 0].tolist() == [places[n] for n in rule.going]
        if not same:  # sums of f32 and of f64 numbers may differ by this much
            gains = on_device._probability * np.float32(cutoff.mean_rate) - np.float32(cutoff.guess_cost)
            some = before & found & (on_device._num_steps > depth) & (gains > 0)
            assume(abs(float(gains[some].sum()) - cutoff.pass_cost) > 1e-5)
        assert same
        assert [on_device.kept.tolist()[i] for i in places] == rule.kept


@pytest.mark.parametrize("number", [0.0, 0.1, 0.25, 1.0, 3.99, 4.0, 1e9, math.inf, math.nan])
def test_bins(number):
    got = bins_of(torch.tensor([number]), edges(torch.device("cpu")))
    assert bytes(got.tolist()) == bins([number])
