"""A whole engine whose decode steps run on the device, here the CPU with plain torch: texts and drafts of the
general way, for all kinds of requests side by side. And how such steps are checked at start."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from support.all_cases import few_or_all

from nextn.bench.prompts import heldout_prompts
from nextn.config import EngineConfig
from nextn.engine import on_device
from nextn.engine.device_runner import DeviceRunner
from nextn.engine.engine import Engine
from nextn.engine.on_device import OnDevice, start_on_device
from nextn.engine.rank import make_runner
from nextn.engine.thread import ThreadExecutor
from nextn.kvcache.pool import KVPool
from nextn.llm import LLM
from nextn.request import SamplingParams, SpeculativeParams
from nextn.speculative.device.columns import RESULTS
from nextn.speculative.device.graphs import OneByOne
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.requests import Load
from nextn.speculative.device.step import DeviceStep

ASKED = [
    SamplingParams(max_tokens=10, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=10, temperature=0.9, seed=3, ignore_eos=True),
    SamplingParams(max_tokens=8, temperature=0.7, seed=5, top_p=0.9, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=0, repetition_penalty=1.2),
    SamplingParams(max_tokens=7, temperature=1.0, seed=1, speculative=SpeculativeParams(num_steps=0)),
    SamplingParams(max_tokens=5, temperature=0, logprobs=1),
    SamplingParams(max_tokens=8, temperature=0, min_tokens=4),
]


class Counting(DeviceRunner):
    count = 0

    def launch_at_once(self, plan):
        ticket = super().launch_at_once(plan)
        self.count += ticket is not None
        return ticket


def with_device_steps(config: EngineConfig) -> DeviceRunner:
    plain = make_runner(config)
    runner = Counting(plain.info, plain.model, plain.pool, plain.drafter)
    pool: KVPool = plain.pool
    relay = Relay(8, 1 + pool.data.shape[1] // pool.page_size, plain.model.device)
    runner.begin_on_device(DeviceStep(plain.model, pool, relay, 8))
    return runner


def llm(drafts, make=make_runner, **options):
    """make: the executor."""
    options = {"kernel_backend": "reference", "threads": 1, "kv_cache_tokens": 2048, **options}
    with patch("nextn.llm.Engine", lambda config: Engine(config, make)):
        return LLM(device="cpu", speculative_num_steps=drafts, check_integrity=True, **options)


def texts(model, asked):
    prompts = [model.tokenizer.encode(p)[:18] for p in heldout_prompts(len(asked))]
    return [c.token_ids for c in model.generate(prompts, asked)]


@pytest.fixture(scope="module")
def want():
    return texts(llm(0), ASKED)


def test_texts_and_drafts(want):
    model = llm(3, with_device_steps, max_running_requests=4)
    assert texts(model, ASKED) == want
    assert model.engine._executor.count > 0
    plain = llm(3, max_running_requests=4)
    assert texts(plain, ASKED) == want
    assert model.engine.stats().spec == plain.engine.stats().spec


@pytest.mark.parametrize(("drafts", "in_thread"), few_or_all([(3, False), ("auto", True)], [(0, True)]))
def test_one_step_ahead(want, drafts, in_thread):
    runners = []

    def make(config):
        runners.append(with_device_steps(config))
        return ThreadExecutor(runners[0]) if in_thread else runners[0]

    model = llm(drafts, make, max_running_requests=4, overlap_schedule="on")
    assert texts(model, ASKED) == want
    assert texts(model, ASKED[:3]) == want[:3]
    if in_thread:
        model.engine._executor._ask(int).result()  # after the calls that nobody waited for
    assert runners[0].count > 5 or drafts == "auto"  # which may keep hidden states
    assert not runners[0].states
    assert len(runners[0]._free) == 8


class PageTables(Counting):
    """Looks, after each step on the device, at the page tables that it had. new: steps that sent new pages
    with their inputs."""

    new = 0

    def launch_at_once(self, plan):
        ticket = super().launch_at_once(plan)
        if ticket is not None:
            self.new += bool(self.step.sent.pages.any())
            for span in plan.spans:
                request = self._requests[span.rid]
                table = self.step.relay.pages[request.slot]
                assert table[: len(request.state.pages)].tolist() == request.state.pages.tolist()
            assert not self.step.relay.pages[0].any()
        return ticket


def test_page_tables(want, monkeypatch):
    """Pages come with requests that join, then one or a few at once."""
    before, send_more = [], Load._send_more
    monkeypatch.setattr(Load, "_send_more", lambda *args: before.append(send_more(*args)))
    monkeypatch.setitem(globals(), "Counting", PageTables)
    model = llm(3, with_device_steps, page_size=2, max_running_requests=3, overlap_schedule="on")
    assert texts(model, ASKED[:5]) == want[:5]
    assert model.engine._executor.new > 0
    assert before  # how often depends on the clock, by which prompts get their share


class Passes(OneByOne):
    """In place of graphs. wrong: what they compute."""

    captured = 0
    wrong = ""

    def capture(self, shapes, captured):
        for _ in shapes:
            type(self).captured += 1
            captured()

    def run_wrong(self, shape):
        if self.wrong == "cannot run":
            raise TypeError("of a kind that nobody expected")
        self.step.run(shape)
        self.step.results[: shape.requests, RESULTS] += 1

    def __init__(self, step):
        super().__init__(step)
        self.step = step
        if self.wrong:
            self.run = self.run_wrong


@pytest.mark.parametrize(("drafts", "wrong"), [(2, ""), (2, "differ"), (0, "cannot run")])
def test_steps_on_the_device_are_checked_at_start(monkeypatch, caplog, drafts, wrong):
    monkeypatch.setattr(on_device, "StepGraphs", Passes)
    monkeypatch.setattr(Passes, "wrong", wrong)
    plain = llm(drafts).engine._executor
    runner = DeviceRunner(plain.info, plain.model, plain.pool, plain.drafter)
    plan = OnDevice(requests=4, num_steps=drafts, cut=False, extends=drafts > 0)
    Passes.captured = 0
    assert start_on_device(plan, runner) == (runner.step is not None) == (not wrong)
    assert Passes.captured == len(plan.shapes(runner.model.config.max_position_embeddings, 8)) == 16
    assert wrong in caplog.text
    assert ("are not used" in caplog.text) == bool(wrong)
    assert not runner.states


@pytest.mark.parametrize("options", [{"kv_cache_tokens": 64}, {"context_length": 32}])
def test_no_room_to_check(options):
    plain = llm(2, **options).engine._executor
    runner = DeviceRunner(plain.info, plain.model, plain.pool, plain.drafter)
    assert not start_on_device(OnDevice(4, 2, cut=False, extends=True), runner)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("requests", "steps"), [(1, 0), (64, 3), (512, 1), (512, 0), (8, 16)])
def test_shapes(requests, steps, cut):
    shapes = OnDevice(requests, steps, cut, extends=steps > 0).shapes(4096)
    assert len(set(shapes)) == len(shapes)
    assert shapes[0].rows == max(shape.rows for shape in shapes) <= 512
    least = {True: 1 + min(steps, 2) if cut else 1 + steps, False: 1}
    assert all(shape.rows >= shape.requests * least[shape.drafting.extends] for shape in shapes)
    assert {shape.drafting.extends for shape in shapes} == {steps > 0, steps > 0 and not cut}
    assert {shape.requests for shape in shapes} >= {1}
