"""Steps on the device give what a `Runner` gives, with the plain torch ops on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.device_steps import Job, make_runner, serve, small_model

from nextn.cutoff import Cutoff
from nextn.request import SamplingParams


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return small_model()


GREEDY = SamplingParams(max_tokens=14, temperature=0.0)
HOT = SamplingParams(max_tokens=14, temperature=1.0, seed=2**63 + 5, stream=3)
FILTERED = SamplingParams(max_tokens=14, temperature=0.8, seed=7, top_p=0.8, top_k=9, min_p=0.02)
CUTOFF = Cutoff((0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99), keep=0.5, usual=0.8, each=0.1, passing=0.3)


def jobs(params, num_steps=3, **rest):
    prompts = [[3, 9, 4], [5], [7] * 21, [1, 2, 3, 4, 5]]
    return [Job(p, q, num_steps, **rest) for p, q in zip(prompts, params, strict=False)]


def both(model, work, drafts=True, cutoff=None, **options):
    """The results of each job, by `Runner` and by steps on the device."""
    found = []
    for on_device in (False, True):
        mine = [replace(job, tokens=[], results=[]) for job in work]
        runner = make_runner(model, on_device=on_device, drafts=drafts)
        serve(runner, mine, cutoff=cutoff, **(options if on_device else {}))
        found.append(mine)
    return found


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "params", [[GREEDY] * 4, [HOT] * 3, [GREEDY, HOT, FILTERED, GREEDY]], ids=["greedy", "sampled", "mixed"]
)
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_results_are_those_of_a_runner(model, params, num_steps, ahead):
    plain, device = both(model, jobs(params, num_steps), ahead=ahead)
    for a, b in zip(plain, device, strict=True):
        assert a.tokens == b.tokens
        assert len(a.tokens) == 14
        if not ahead:
            assert a.results == b.results


@pytest.mark.parametrize("ahead", [False, True])
def test_without_a_drafter(model, ahead):
    plain, device = both(model, jobs([GREEDY, HOT, FILTERED], 0), drafts=False, ahead=ahead)
    assert [a.tokens for a in plain] == [b.tokens for b in device]


@pytest.mark.parametrize("ahead", [False, True])
def test_the_gate(model, ahead):
    work = [*jobs([GREEDY, HOT, GREEDY], 5, cut=True), Job([8, 8], HOT, 2)]
    plain, device = both(model, work, cutoff=CUTOFF, ahead=ahead)
    for a, b in zip(plain, device, strict=True):
        assert a.tokens == b.tokens
        if not ahead:
            assert a.results == b.results
    drafts = [r.draft for r in plain[0].results]
    assert len({len(d) for d in drafts}) > 1
