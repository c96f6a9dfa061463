"""Steps in a thread, planned ahead: errors, order, ends, and what they write."""

import dataclasses
import subprocess
import sys
import threading
import time

import pytest
import torch

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.executor import Ran
from nextn.engine.rank import make_runner
from nextn.engine.thread import ThreadExecutor
from nextn.request import Request, SamplingParams

SMALL = {"model_path": "fake:0.6", "speculative_num_steps": 2, "check_integrity": True}


def request(rid, prompt=(5, 6, 7), **params):
    return Request(rid, list(prompt), SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params}))


def texts(engine, count=200):
    found = {}
    for _ in range(count):
        if not engine.has_work():
            return found
        for out in engine.step():
            found.setdefault(out.rid, []).extend(out.tokens)
    raise AssertionError("it does not end")


def test_texts_are_those_of_steps_one_after_another():
    found = []
    for schedule in ("off", "on"):
        engine = Engine(EngineConfig(overlap_schedule=schedule, **SMALL))
        for i in range(9):
            engine.add(request(str(i), range(1, 3 + 5 * i), max_tokens=11 + i))
        found.append((texts(engine), engine.stats().spec))
    assert found[0] == found[1]
    assert sorted(map(len, found[1][0].values())) == list(range(11, 20))


def test_nothing_is_under_way_when_all_have_ended():
    engine = Engine(EngineConfig(overlap_schedule="on", **SMALL))
    engine.add(request("a", max_tokens=5))
    texts(engine)
    assert not engine.must_step()
    assert engine.flush_cache()
    assert engine.step() == []
    assert engine.stats().used_tokens == 0


def test_a_step_is_under_way_between_two_calls():
    engine = Engine(EngineConfig(overlap_schedule="on", **SMALL))
    engine.add(request("a", max_tokens=50))
    engine.step()
    before = engine.stats().steps
    assert engine.abort("a")
    assert not engine.has_work()
    assert engine.must_step()  # its step is read, and tells nothing
    assert engine.step() == []
    assert not engine.must_step()
    assert engine.stats().steps == before + 1
    engine.add(request("a", max_tokens=5))
    assert len(texts(engine)["a"]) == 5


class Broken:
    """Runs nothing."""

    def __init__(self, runner):
        self.info, self.awake, self.wakes = runner.info, False, None
        self.expert_counts = lambda: None
        self.said = []

    def add(self, state):
        self.said.append(("add", state))
        if state == "no":
            raise ValueError("no such thing")

    def drop(self, rid):
        self.said.append(("drop", rid))

    def launch(self, plan):
        raise RuntimeError(f"no step {plan}")


@pytest.fixture
def broken():
    return Broken(make_runner(EngineConfig(**SMALL)))


def test_what_a_step_raises_comes_with_its_result(broken):
    executor = ThreadExecutor(broken)
    first = executor.launch("1")
    with pytest.raises(RuntimeError, match="no step 1"):
        first.result()
    executor.close()


def test_what_nobody_waits_for_raises_in_the_next_step(broken):
    executor = ThreadExecutor(broken)
    executor.add("yes")
    executor.drop("yes")
    executor.add("no")
    with pytest.raises(ValueError, match="no such thing"):
        executor.launch("1").result()
    assert broken.said == [("add", "yes"), ("drop", "yes"), ("add", "no")]
    executor.close()


def test_its_thread_ends_with_it(broken):
    executor = ThreadExecutor(broken)
    [thread] = [each for each in threading.enumerate() if each.name == "nextn-steps" and each.is_alive()][-1:]
    del executor
    thread.join(5.0)
    assert not thread.is_alive()


def test_pages_are_read_after_the_steps_that_were_launched():
    engine = Engine(EngineConfig(overlap_schedule="on", **SMALL))
    executor = engine._executor
    assert isinstance(executor, ThreadExecutor)
    own, order = executor._own, []
    run = own.launch

    def slow(plan):
        time.sleep(0.05)
        order.append("step")
        return run(plan)

    own.launch = slow
    engine.add(request("a", max_tokens=9))
    engine.step()
    pool = own.pool.data
    into = torch.empty(pool.shape[0], own.pool.page_size, pool.shape[2], dtype=pool.dtype)
    executor.read_pages([1], into)
    assert order == ["step", "step"]
    engine.step()
    assert executor.page_memory() is own.pool.data
    assert order == ["step"] * 3
    texts(engine)


@pytest.mark.parametrize("schedule", ["off", "on"])
def test_a_request_alone_whose_steps_are_not_all_plain(schedule):
    """The step after its last one has no rows. With the native kernels, one of another kind was before it."""
    engine = Engine(EngineConfig(overlap_schedule=schedule, check_integrity=True, threads=1))
    for params in (
        {"logprobs": 1, "prompt_logprobs": 1},
        {"prompt_logprobs": 1},
        {"frequency_penalty": 0.5},
        {"min_tokens": 3},
    ):
        before = dataclasses.replace(engine.stats())
        for tokens in range(3, 8):
            engine.add(request(str(tokens), range(3, 25), max_tokens=tokens, **params))
            scores, count = [], 0
            while engine.has_work():
                for out in engine.step():
                    scores += out.prompt_logprobs or []
                    count += len(out.tokens)
            assert count == tokens
            assert len(scores) == (22 if "prompt_logprobs" in params else 0)
        stats = engine.stats()
        of_prompts = stats.steps - before.steps - (stats.decode_steps - before.decode_steps)
        assert of_prompts == 5


def test_steps_run_on_the_gpu_of_the_engine(broken, monkeypatch):
    """Which one is current, each thread says for itself."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda n: chosen.append((threading.current_thread().name, n))
    )
    broken.info = dataclasses.replace(broken.info, device="cuda")
    executor = ThreadExecutor(broken)
    with pytest.raises(RuntimeError):
        executor.launch("1").result()
    assert chosen == [("nextn-steps", 3)]
    executor.close()


def test_python_ends_in_the_middle_of_a_step():
    """Nothing is freed that the step still uses, and nothing is said."""
    program = (
        "from nextn.config import EngineConfig\n"
        "from nextn.engine.engine import Engine\n"
        "from nextn.request import Request, SamplingParams\n"
        "engine = Engine(EngineConfig(overlap_schedule='on'))\n"
        "for i in range(64):\n"
        "    params = SamplingParams(max_tokens=500, temperature=0.0, ignore_eos=True)\n"
        "    engine.add(Request(str(i), [5, 6, 7], params))\n"
        "for _ in range(5):\n"
        "    engine.step()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Guarded:
    """A runner whose steps write only the slots that were planned: the target those of its rows, the drafter
    those and the slots of the next draft. All pages are compared before and after."""

    def __init__(self, config):
        self._runner = make_runner(config)
        self.ahead = self.written = 0

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def launch(self, plan):
        runner = self._runner
        data, layers = runner.pool.data, runner.model.config.num_hidden_layers
        rows = [self.rows(span, runner.states[span.rid]) for span in plan.spans]
        before = data.clone()
        ran = runner.launch(plan)
        changed = (before.view(torch.uint8) != data.view(torch.uint8)).flatten(2).any(2)
        allowed = torch.zeros_like(changed)
        for span, (start, end) in zip(plan.spans, rows, strict=True):
            state = runner.states[span.rid]
            size = runner.pool.page_size
            slots = [page * size + i for page in state.pages for i in range(size)]
            guesses = span.num_steps * runner.drafter.shape.topk if end > start else 0
            allowed[:layers, slots[start:end]] = True
            allowed[layers:, slots[start : end + guesses]] = True
            self.ahead += span.ahead
        allowed[:, : runner.pool.page_size] = True  # the null page
        assert not (changed & ~allowed).any(), "a step wrote slots that were not planned for it"
        self.written += int(changed.sum())
        return ran

    @staticmethod
    def rows(span, state):
        """The positions of the span's rows: first, and end."""
        if not span.ahead:
            return span.start, span.start + span.known + len(span.draft.tokens)
        start = len(state.history) - 1
        if state.ended:
            return start, start
        return start, start + 1 + len(state.proposed.cut(span.most_drafts, state.room - 1).tokens)


@pytest.mark.parametrize("drafts", [(3, 1, None), (3, 2, 6)], ids=["chains", "trees"])
def test_nothing_is_written_that_was_not_planned(drafts):
    steps, topk, nodes = drafts
    config = EngineConfig(
        overlap_schedule="on", check_integrity=True, kv_cache_tokens=200, page_size=4,
        chunked_prefill_size=64, max_running_requests=8, threads=1, speculative_num_steps=steps,
        speculative_eagle_topk=topk, speculative_num_draft_tokens=nodes,
    )  # fmt: skip
    engine = Engine(config, Guarded)
    for i in range(12):  # with pages that several requests share
        prompt = [3 + 5 * j % 300 for j in range(9)] + [7 * i + j for j in range(1 + 9 * (i % 4))]
        engine.add(request(str(i), prompt, max_tokens=40 + 3 * i, temperature=0.5 * (i % 2), seed=i))
    step = 0
    while engine.has_work():
        engine.step()
        step += 1
        if step % 11 == 0:
            engine.abort(str(step % 12))
    executor, stats = engine._executor, engine.stats()
    assert executor.ahead > 40
    assert executor.written > 1000
    assert stats.retracted > 0
    assert stats.cached_tokens > 0


class AtOnce(Broken):
    """A plan is launched at once if it is a number, else by the thread."""

    def __init__(self, runner):
        super().__init__(runner)
        self.free = threading.Event()

    def launch_at_once(self, plan):
        self.say(plan)
        return Ran(plan) if isinstance(plan, int) else None

    def launch(self, plan):
        self.free.wait(5.0)
        if plan == "broken":
            raise RuntimeError("no such step")
        self.say(plan)
        return Ran(plan)

    def add(self, state):
        self.say(state)

    drop = add

    def say(self, what):
        self.said.append((what, threading.current_thread() is threading.main_thread()))


@pytest.fixture
def at_once():
    executor = ThreadExecutor(AtOnce(make_runner(EngineConfig(**SMALL))))
    yield executor
    executor._own.free.set()
    executor.close()


def test_what_need_not_wait_is_done_by_the_caller(at_once):
    at_once.add("a")
    assert at_once.launch(1).result() == 1
    at_once.drop("a")
    assert at_once._own.said == [("a", True), (1, True), ("a", True)]


def test_nothing_goes_ahead_of_what_the_thread_does(at_once):
    slow = at_once.launch("slow")  # was tried at once
    at_once.add("a")
    second = at_once.launch(2)
    at_once.drop("a")
    assert at_once._own.said == [("slow", True)]
    at_once._own.free.set()
    assert (slow.result(), second.result()) == ("slow", 2)
    at_once._ask(int).result()
    assert at_once._own.said[1:] == [("slow", False), ("a", False), (2, False), ("a", False)]
    assert at_once.launch(3).result() == 3
    assert at_once._own.said[-1] == (3, True)


def test_after_a_step_that_failed_none_runs_at_once(at_once):
    at_once._own.free.set()
    for plan in ("broken", 1, 2):
        with pytest.raises(RuntimeError, match="no such step"):
            at_once.launch(plan).result()
    assert at_once._own.said == [("broken", True)]


def test_another_thread_than_the_engines_launches_nothing_itself(at_once):
    """Its current device may be another."""
    at_once._own.free.set()
    found = []
    other = threading.Thread(target=lambda: found.append(at_once.launch(1).result()))
    other.start()
    other.join()
    assert found == [1]
    assert at_once._own.said == [(1, False)]
