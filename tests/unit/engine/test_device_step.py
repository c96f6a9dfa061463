"""Steps on the device give what a `Runner` gives, with the plain torch ops on the CPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.device_steps import Job, config, make_runner, same_results, serve, small_model
from support.recorded_steps import FixedOps, RecordedSteps
from support.sharing import shared_model

from nextn.cutoff import Cutoff
from nextn.engine.device_runner import DEPTHS, rounded
from nextn.models.cuda import CudaModel
from nextn.request import NOT_FINITE, SamplingParams
from nextn.speculative.device.graphs import OneByOne
from nextn.speculative.device.shape import Drafting, StepShape

GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
HOT = SamplingParams(max_tokens=10, temperature=1.0, seed=2**63 + 5, stream=3)
FILTERED = SamplingParams(max_tokens=10, temperature=0.8, seed=7, top_p=0.8, top_k=9, min_p=0.02)
PENALIZED = GREEDY.replace(repetition_penalty=1.3)
CUTOFF = Cutoff(
    (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99),
    row_cost=0.5,
    mean_rate=0.8,
    guess_cost=0.1,
    pass_cost=0.3,
)
PROMPTS = ([3, 9, 4], [5], [7] * 27, [1, 2, 3, 4, 5])
with_ahead = pytest.mark.parametrize("ahead", [False, True], ids=["step by step", "ahead"])


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield small_model()
    torch.set_num_threads(threads)


def jobs(params, num_steps=3, **rest):
    return [Job(p, q, num_steps, **rest) for p, q in zip(PROMPTS, params, strict=False)]


def run(runner, work, **options):
    """The jobs, done, and how often steps ran which way."""
    done, ways = [replace(job, tokens=[], results=[]) for job in work], Counter()
    launch = runner.launch

    def counted(plan):
        ticket = launch(plan)
        ways[type(ticket).__name__] += 1
        return ticket

    runner.launch = counted
    serve(runner, done, **options)
    return done, ways


class Roomy(OneByOne):
    """Every step runs in a larger shape than it needs."""

    def prepare(self, shape):
        steps = shape.drafting.num_steps
        larger = StepShape(
            min(8, 2 * shape.requests), 2 * shape.rows, Drafting(steps + 2, True, True), shape.choosing,
            4 * shape.longest,
        )  # fmt: skip
        assert larger.covers(shape)
        return larger


def compare(model, work, ahead=False, drafts=True, general=1, passes=OneByOne, **options):
    """By `Runner` and by steps on the device. general: at most so many steps of the latter are none. Returns
    the jobs, done."""
    plain, _ = run(make_runner(model, on_device=False, drafts=drafts), work, **options)
    done, ways = run(make_runner(model, drafts=drafts, passes=passes), work, ahead=ahead, **options)
    assert ways["DeviceTicket"] > 0
    assert ways["Ran"] <= general
    for a, b in zip(plain, done, strict=True):
        assert a.tokens == b.tokens
        if not ahead:
            assert same_results(b.results, a.results)
    return plain


def accepted(done):
    return sum(max(0, len(result.tokens) - 1) for job in done for result in job.results)


@pytest.mark.parametrize(
    ("params", "num_steps", "ahead"),
    [
        ([GREEDY] * 4, 0, False), ([GREEDY] * 4, 3, True), ([HOT] * 3, 1, True), ([HOT] * 3, 5, False),
        ([GREEDY, HOT, FILTERED, GREEDY], 0, True), ([GREEDY, HOT, FILTERED, GREEDY], 3, False),
        ([GREEDY, HOT, FILTERED, GREEDY], 5, True),
    ],
)  # fmt: skip
def test_results_are_those_of_a_runner(model, params, num_steps, ahead):
    done = compare(model, jobs(params, num_steps), ahead)
    assert all(len(job.tokens) == 10 for job in done)
    assert (accepted(done) > 0) == (num_steps > 0)


@pytest.mark.parametrize(
    ("num_steps", "cut", "ahead"), [(0, False, True), (2, False, False), (2, True, True)]
)
def test_a_larger_shape_gives_the_same(model, num_steps, cut, ahead):
    work = jobs([GREEDY, HOT, FILTERED], num_steps, cut=cut)
    compare(model, work, ahead, passes=Roomy, cutoff=CUTOFF)


@with_ahead
def test_without_a_drafter(model, ahead):
    compare(model, jobs([GREEDY, HOT, FILTERED], 0, extend=False), ahead, drafts=False)


@with_ahead
def test_while_nobody_drafts(model, ahead):
    """The draft layer does not see these positions."""
    compare(model, jobs([GREEDY, HOT], 0, extend=False), ahead)


@with_ahead
def test_the_cutoff(model, ahead):
    work = [*jobs([GREEDY, HOT, GREEDY], 5, cut=True), Job([8, 8], HOT, 2)]
    done = compare(model, work, ahead, cutoff=CUTOFF)
    assert len({len(r.draft) for r in done[0].results}) > 1


@with_ahead
def test_a_drafter_that_does_not_see_the_beginning(model, ahead):
    work = [Job([i % 12 for i in range(20)], GREEDY, 3, draft_from=16), Job([4, 4], HOT, 3, joins=1)]
    compare(model, work, ahead, general=2)


@with_ahead
def test_requests_come_and_go(model, ahead):
    """Prompts, and requests that only the general way serves, come in between."""
    work = [
        Job([3, 9, 4], GREEDY.replace(max_tokens=30), 3), Job([5], HOT.replace(max_tokens=5), 2),
        Job([7] * 21, PENALIZED.replace(max_tokens=6), 3, joins=4), Job([1, 2], FILTERED, 1, joins=9),
        Job([6] * 4, GREEDY.replace(max_tokens=9), 3, joins=11),
    ]  # fmt: skip
    if ahead:
        work[2].params = GREEDY.replace(max_tokens=6)
    compare(model, work, ahead, general=99)


ends = st.frozensets(st.integers(0, 11), max_size=3)
each = st.tuples(ends, st.integers(1, 12), st.integers(0, 4), st.booleans(), st.integers(0, 99))


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(each, min_size=1, max_size=4), st.booleans())
def test_ends(model, each, ahead):
    """End tokens, amid accepted drafts too, and limits."""
    work = []
    for prompt, (end_ids, most, num_steps, greedy, seed) in zip(PROMPTS, each, strict=False):
        params = SamplingParams(max_tokens=most, temperature=0.0 if greedy else 2.0, seed=seed)
        work.append(Job(prompt, params, num_steps, end_ids))
    plain, _ = run(make_runner(model, on_device=False), work)
    done, _ = run(make_runner(model), work, ahead=ahead)
    assert [d.tokens for d in done] == [p.tokens for p in plain]


def test_min_tokens(model):
    """Steps in which an end token may be forbidden are not the device's."""
    params = GREEDY.replace(min_tokens=6)
    for end in (0, 6):
        work = [Job([3, 9, 4], params, 2, frozenset((end,)))]
        plain, _ = run(make_runner(model, on_device=False), work)
        done, _ = run(make_runner(model), work)
        assert done[0].tokens == plain[0].tokens


@pytest.mark.parametrize(("num_steps", "ahead"), [(0, True), (3, False), (3, True)])
def test_logits_that_are_not_finite(num_steps, ahead):
    """Drafts that spoil them are dropped; a token that the target chose ends the request."""
    failed = 0
    for token in (3, 7, 11):
        model = small_model()
        model.embedding[token] = float("nan")
        work = [job for job in jobs([GREEDY, HOT, HOT.replace(seed=4)], num_steps) if token not in job.prompt]
        plain, _ = run(make_runner(model, on_device=False), work)
        done, _ = run(make_runner(model), work, ahead=ahead)
        assert [d.tokens for d in done] == [p.tokens for p in plain]
        errors = [[r.error for r in d.results if r.error] for d in done]
        assert errors == [[r.error for r in p.results if r.error] for p in plain]
        assert all(e.code == NOT_FINITE for some in errors for e in some)
        failed += any(errors)
    assert failed


def test_more_requests_than_slots(model):
    work = jobs([GREEDY] * 4)
    plain, _ = run(make_runner(model, on_device=False), work)
    done, _ = run(make_runner(model, requests=3), work)
    assert [d.tokens for d in done] == [p.tokens for p in plain]


class Leaves(Exception):
    pass


def test_a_request_dropped_while_its_step_is_under_way(model):
    """Its slot goes to another at once."""
    (want,) = compare(model, [Job([5, 6], GREEDY)])
    runner = make_runner(model, requests=1)
    launch = runner.launch
    for _ in range(2):
        launched = []

        def leave(plan, launched=launched):
            launched.append(launch(plan))
            if len(launched) == 4:
                raise Leaves
            return launched[-1]

        runner.launch = leave
        with pytest.raises(Leaves):
            serve(runner, [Job([9, 9, 9], GREEDY)])
        runner.launch = launch
        runner.drop("0")
        second = Job([5, 6], GREEDY)
        serve(runner, [second])
        assert second.tokens == want.tokens
        assert launched[-1].result().spans[0].tokens


@pytest.mark.parametrize("num_steps", range(17))
def test_depths(num_steps):
    assert num_steps <= rounded(num_steps) in DEPTHS


def test_a_module_whose_first_embedding_is_masked():
    model = shared_model(config(architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite"))
    assert model.config.mtp.masks_first
    compare(model, jobs([GREEDY, HOT, FILTERED, GREEDY]))


class Uncaptured(CudaModel):
    """The model of a GPU, launched kernel by kernel."""

    captures = False


def test_the_cutoff_as_where_the_host_chooses_on_a_device():
    """There all guesses are made, and all bins reported."""
    model = small_model(ops=FixedOps())
    model.__class__ = Uncaptured
    work = jobs([GREEDY] * 4, 5, cut=True)
    done, _ = run(make_runner(model), work, cutoff=CUTOFF)
    runner = make_runner(model, on_device=False)
    assert runner.drafter.on_device is model
    plain, _ = run(runner, work, cutoff=CUTOFF)
    assert [d.results for d in done] == [p.results for p in plain]
    bins = [len(r.draft.bins) for d in done for r in d.results]
    assert max(bins) == 5 > min(len(r.draft) for d in done for r in d.results)


@pytest.mark.parametrize(
    ("num_steps", "ahead", "cut"), [(0, True, False), (3, False, False), (3, True, True)]
)
def test_graphs(num_steps, ahead, cut):
    """Recorded over nobody's requests, replayed for all that come. Kernels without a host in between."""
    model = small_model(ops=FixedOps())
    work = [
        *jobs([GREEDY, HOT, FILTERED], num_steps), Job([8, 8], HOT, 2 * (num_steps > 0), frozenset((2, 7))),
        Job([2, 6] * 3, GREEDY, num_steps, joins=5),
    ]  # fmt: skip
    work = [replace(job, cut=cut) for job in work]
    plain, _ = run(make_runner(model, on_device=False), work, cutoff=CUTOFF)
    runner = make_runner(model, passes=RecordedSteps)
    done, ways = run(runner, work, ahead=ahead, cutoff=CUTOFF)
    for a, b in zip(plain, done, strict=True):
        assert a.tokens == b.tokens
        assert ahead or same_results(b.results, a.results)
    assert 1 < len(runner.passes.recordings) < ways["DeviceTicket"]
    assert (accepted(plain) > 0) == (num_steps > 0)


@with_ahead
def test_keeping(model, ahead):
    """The general way keeps what requests that do not draft need later; those that draft need nothing."""
    compare(model, jobs([GREEDY, HOT]), ahead, keep=True)
    work = jobs([GREEDY.replace(max_tokens=6), HOT])
    work[0].extend, work[0].num_steps = False, 0
    compare(model, work, keep=True, general=6)


@with_ahead
def test_some_do_not_draft(model, ahead):
    """The draft layer does not see their positions."""
    work = jobs([GREEDY, HOT, FILTERED, GREEDY])
    work[1].extend = work[2].extend = False
    work[1].num_steps = work[2].num_steps = 0
    compare(model, work, ahead)
