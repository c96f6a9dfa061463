"""Rates are learnt: shared by depth, by request, by confidence."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.acceptance import AcceptanceModel, RequestAcceptance, confidence_bin

steps = st.lists(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=3, max_size=3), max_size=80
)


def run(model, request, rates, steps, rng, depth=5):
    for _ in range(steps):
        a = 0
        while a < depth and rng.random() < rates[a]:
            a += 1
        model.observe([request], [depth], [a])


def rates_of(model, request):
    return model.curve(request.level).rates


@given(steps)
def test_whatever_is_seen_rates_stay_rates(steps):
    model, requests = AcceptanceModel(), [RequestAcceptance() for _ in range(3)]
    for step in steps:
        verified = [v for v, _ in step]
        model.observe(requests, verified, [min(v, a) for v, a in step])
    for r in requests:
        survival = model.curve(r.level).survival
        assert all(0.0 < p < 1.0 for p in survival)
        assert survival == sorted(survival, reverse=True)


@pytest.mark.parametrize("rates", [[0.9, 0.85, 0.8, 0.75, 0.7], [0.5, 0.5, 0.6, 0.6, 0.6], [0.15] * 5])
def test_conditional_rates_are_found(rates):
    """Averaged over the end of a run, as an estimate that follows what drifts is never at rest."""
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(0)
    run(model, request, rates, 500, rng)
    sums = [0.0] * 2
    for _ in range(200):
        run(model, request, rates, 5, rng)
        for j in range(2):
            sums[j] += rates_of(model, request)[j] / 200
    assert sums == pytest.approx(rates[:2], abs=0.05)


def test_depths_nobody_verifies_do_not_sink():
    """Chains break at the deepest draft that is judged; that is no news of the depths behind it."""
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(0)
    run(model, request, [0.75, 0.7], 600, rng, depth=2)
    assert rates_of(model, request)[5] > 0.4


def test_requests_are_told_apart_and_a_new_one_starts_from_all():
    model, rng = AcceptanceModel(), random.Random(0)
    easy, hard = RequestAcceptance(), RequestAcceptance()
    for _ in range(150):
        run(model, easy, [0.9] * 5, 1, rng)
        run(model, hard, [0.3] * 5, 1, rng)
    assert rates_of(model, easy)[0] > 0.8
    assert rates_of(model, hard)[0] < 0.45
    assert 0.45 < rates_of(model, RequestAcceptance())[0] < 0.8


def test_a_change_is_followed():
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(0)
    run(model, request, [0.9] * 5, 300, rng)
    run(model, request, [0.2] * 5, 60, rng)
    assert rates_of(model, request)[0] < 0.45


def test_confidence_means_what_it_turns_out_to_mean():
    """A drafter that says 0.95 and is right 6 times in 10, says 0.3 and is right 2 times in 10."""
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(0)
    told = {0.95: 0.6, 0.3: 0.2}
    for _ in range(3000):
        said = rng.choice([0.95, 0.3])
        request.bins = [confidence_bin(math.log(said))]
        model.observe([request], [1], [int(rng.random() < told[said])])
    for said, true in told.items():
        request.bins = [confidence_bin(math.log(said))]
        assert model.survival(request) == [pytest.approx(true, abs=0.1)]


def test_bins_are_finer_near_certainty():
    assert [confidence_bin(math.log(p)) for p in (1.0, 0.99, 0.9, 0.5, 0.01)] == [0, 0, 2, 6, 17]
    assert confidence_bin(-math.inf) == confidence_bin(-1000.0)
