"""Rates are learnt: shared by depth, and by request."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.acceptance import AcceptanceModel, RequestAcceptance

steps = st.lists(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=3, max_size=3), max_size=80
)


def run(model, request, rates, steps, rng, depth=5):
    for _ in range(steps):
        a = 0
        while a < depth and rng.random() < rates[a]:
            a += 1
        request.note(depth, a)
    model.observe([request], steps)


def rates_of(model, request):
    return model.curve(request.level).rates


@given(steps)
def test_whatever_is_seen_rates_stay_rates(steps):
    model, requests = AcceptanceModel(), [RequestAcceptance() for _ in range(3)]
    for step in steps:
        for r, (v, a) in zip(requests, step, strict=True):
            if v:
                r.note(v, min(v, a))
        if step[0][0] % 3:  # one step's notes or several
            model.observe(requests)
            assert not any(r.outcomes for r in requests)
    for r in requests:
        survival = model.curve(r.level).survival
        assert all(0.0 < p < 1.0 for p in survival)
        assert survival == sorted(survival, reverse=True)


@pytest.mark.parametrize("rates", [[0.9, 0.85, 0.8, 0.75, 0.7], [0.5, 0.5, 0.6, 0.6, 0.6], [0.15] * 5])
def test_conditional_rates_are_found(rates):
    """Averaged over the end of a run, as an estimate that follows what drifts is never at rest."""
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(0)
    for _ in range(20):
        run(model, request, rates, 25, rng)
    sums = [0.0] * 2
    for _ in range(200):
        run(model, request, rates, 5, rng)
        for j in range(2):
            sums[j] += rates_of(model, request)[j] / 200
    assert sums == pytest.approx(rates[:2], abs=0.05)


def test_depths_nobody_verifies_do_not_sink():
    """Chains break at the deepest draft that is judged; that is no news of the depths behind it."""
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(0)
    for _ in range(24):
        run(model, request, [0.75, 0.7], 25, rng, depth=2)
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
    for _ in range(12):
        run(model, request, [0.9] * 5, 25, rng)
    for _ in range(3):
        run(model, request, [0.2] * 5, 20, rng)
    assert rates_of(model, request)[0] < 0.45


@pytest.mark.parametrize("size", [1, 24])
def test_many_steps_at_once_say_what_they_say_one_by_one(size):
    model, request, rng = AcceptanceModel(), RequestAcceptance(), random.Random(4)
    for _ in range(960 // size):
        run(model, request, [0.8, 0.4] + [0.4] * 3, size, rng)
    assert rates_of(model, request)[:2] == pytest.approx([0.8, 0.4], abs=0.12)
