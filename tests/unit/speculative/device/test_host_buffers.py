"""No buffer of the host is touched while the device may still copy from it or to it."""

from __future__ import annotations

import pytest
import torch
from support.device_steps import Job, make_runner, serve, small_model

from nextn.engine import device_runner
from nextn.request import SamplingParams
from nextn.speculative.device.host_buffers import FreeBuffers, HostBuffers
from nextn.speculative.device.sent import Sent

GREEDY = SamplingParams(max_tokens=14, temperature=0.0)
GARBAGE = -(2**31)


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def step(model):
    return make_runner(model, requests=4).step


@pytest.mark.parametrize("requests", [1, 2, 7, 512])
def test_parts_of_what_is_sent(requests):
    sent = Sent(requests, 5, torch.device("cpu"))
    parts = sent.inputs, sent.cutoff, sent.places, sent.pages
    assert [len(part) for part in parts[::2]] == [requests] * 2
    for n, part in enumerate(parts):
        assert (part.data_ptr() - sent.whole.data_ptr()) % 16 == 0
        part.fill_(1 + n)
    for n, part in enumerate(parts):
        assert (part == 1 + n).all()  # none lies in another
    assert sum(part.nbytes for part in parts) <= sent.whole.nbytes


def test_what_is_sent_and_fetched(step):
    buffers = HostBuffers(step)
    buffers.inputs[:] = buffers.inputs.obj * 0 + 7
    buffers.places[3], buffers.pages[3], buffers.cutoff[2] = 5, 6, 0.5
    step.results.fill_(8)
    assert not step.inputs.any()
    buffers.send()
    assert (step.inputs == 7).all()
    assert (step.sent.places[3], step.sent.pages[3], step.cutoff[2]) == (5, 6, 0.5)
    buffers.results[:] = 0
    buffers.fetch(2)
    buffers.wait()
    assert (buffers.results[:2] == 8).all()
    assert not buffers.results[2:].any()


def test_room(step):
    buffers = HostBuffers(step)
    assert [len(buffers.room(count)) for count in (5, 3, 8, 9)] == [5, 3, 8, 9]
    assert len(buffers.more) == 16


def test_each_is_given_back_once(step):
    free = FreeBuffers(step)
    first, second = free.take(), free.take()
    assert first is not second
    free.give(first)
    assert free.take() is first
    free.give(first)
    with pytest.raises(AssertionError):
        free.give(first)


class Slow(HostBuffers):
    """Of a device that copies as late as it may: results come when they are waited for. Until then nothing
    that was sent may change."""

    made = 0

    def __init__(self, step):
        super().__init__(step)
        type(self).made += 1
        self.late = None

    def parts(self):
        return self._sent.whole.clone(), self.more.clone()

    def send(self):
        assert self.late is None, "a step under way has these buffers"
        super().send()
        self.was_sent = self.parts()

    def fetch(self, requests):
        self.late = requests, self._step.results[:requests].clone()
        self.results[:] = GARBAGE

    def wait(self):
        if self.late is None:  # another waited
            return
        assert all(map(torch.equal, self.was_sent, self.parts()))
        assert (self.results == GARBAGE).all()
        requests, results = self.late
        self.results[:requests] = results.numpy()
        self.late = None


class SlowBuffers(FreeBuffers):
    def take(self):
        return self._free.pop() if self._free else Slow(self._step)


@pytest.mark.parametrize("num_steps", [0, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_device_that_copies_late(model, monkeypatch, num_steps, ahead):
    def texts():
        prompts = [3, 9, 4], [5], [7] * 21
        jobs = [Job(prompt, GREEDY, num_steps, joins=2 * n) for n, prompt in enumerate(prompts)]
        return serve(make_runner(model), jobs, ahead=ahead)

    want = texts()
    Slow.made = 0
    monkeypatch.setattr(device_runner, "FreeBuffers", SlowBuffers)
    assert texts() == want
    assert Slow.made == 1 + ahead


def test_as_many_as_are_under_way(model):
    """Steps of one request launched without reading any: each has buffers of its own."""
    runner = make_runner(model, requests=2)
    launch, tickets = runner.launch, []

    class Enough(Exception):
        pass

    def launched(plan):
        tickets.append(launch(plan))
        if len(tickets) == 4:
            raise Enough
        return tickets[-1]

    runner.launch = launched
    with pytest.raises(Enough):
        serve(runner, [Job([9, 9, 9], GREEDY)], ahead=True)
    under_way = [t.buffers for t in tickets[1:] if t.found is None]
    assert len(under_way) == len({id(b) for b in under_way}) == 2
    assert not any(each is b for each in runner._buffers._free for b in under_way)
    tickets[-1].result()
    assert {id(b) for b in under_way} <= {id(b) for b in runner._buffers._free}
