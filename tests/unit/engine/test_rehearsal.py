"""The rehearsal of steps: what costs it makes of them, that it fits what there is, that it leaves nothing."""

import pytest

from nextn.config import EngineConfig
from nextn.engine import build, rehearsal
from nextn.engine.engine import Engine
from nextn.engine.rehearsal import EIGHT, FOUR_VERIFIED, NONE, ONE, TWO_VERIFIED, costs_of
from nextn.request import Request, SamplingParams
from nextn.speculative.costs import StepWork


def steps(n, row=0.02, first=0.05, further=0.03, request=0.1, fixed=1.0):
    """Seconds of each setting's step, of n requests."""
    none = fixed + n * request + n * row
    made = n * first
    return {
        NONE: none,
        ONE: none + made,
        EIGHT: none + made + 7 * n * further,
        TWO_VERIFIED: none + made + n * further + 2 * n * row,
        FOUR_VERIFIED: none + made + 3 * n * further + 4 * n * row,
    }


def test_costs_are_those_of_the_steps():
    costs = costs_of({n: steps(n) for n in (1, 4, 16, 64)})
    for n in (1, 2, 4, 10, 16, 64):
        for d in range(5):
            work = StepWork(n * (1 + d), 2 * n * (d > 0), [n] * (d - 1), n)
            truth = steps(n)[NONE] + (d > 0) * n * 0.05 + max(0, d - 1) * n * 0.03 + d * n * 0.02
            assert costs.step(work) == pytest.approx(truth, rel=0.02)


def test_steps_that_contradict_each_other_make_costs_all_the_same():
    odd = {NONE: 1.0, ONE: 0.9, EIGHT: 0.8, TWO_VERIFIED: 0.7, FOUR_VERIFIED: 0.6}
    costs = costs_of({1: odd, 4: steps(4)})
    assert 0.0 < costs.step(StepWork(4, 4, [2], 2)) < 10.0


def engine(**options):
    return Engine(EngineConfig(model_path="fake:0.5,0.5", **{"speculative_num_steps": -1, **options}))


@pytest.fixture
def tried(monkeypatch):
    """Requests of each batch that was tried."""
    found = []
    run = rehearsal._Stage.run

    def counted(self, n, *args):
        found.append(n)
        return run(self, n, *args)

    monkeypatch.setattr(rehearsal._Stage, "run", counted)
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    monkeypatch.setattr(rehearsal, "ENOUGH", float("inf"))  # a busy machine must not decide what is tried
    return found


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"max_running_requests": 64}, [1, 16, 64]),
        ({"max_running_requests": 5}, [1]),
        ({"kv_cache_tokens": 1024}, [1]),
        ({"kv_cache_tokens": 64}, []),
        ({"chunked_prefill_size": 64, "max_running_requests": 32}, [1]),
    ],
)
def test_it_fits_what_there_is(tried, options, batches):
    made = engine(**options)
    assert tried == batches
    made.add(Request("a", [1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True)))
    while made.has_work():
        made.step()
    made.check_integrity()


def test_nothing_of_it_is_left(tried):
    made = engine()
    assert tried
    stats = made.stats()
    assert (stats.steps, stats.generated_tokens, stats.spec.verify_steps) == (0, 0, 0)
    assert len(made._executor.drafter.behind) == 0
    made.check_integrity()


def test_only_automatic_depth_rehearses(tried, monkeypatch):
    monkeypatch.setattr(build, "rehearse", None)
    engine(speculative_num_steps=2)
    assert not tried
