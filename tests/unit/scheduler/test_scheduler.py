"""The scheduler against a scripted executor: every text comes out as if alone, nothing leaks.

The executor is in `support.scripted_executor`.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.scripted_executor import CHAINS, VOCAB, drain, expected, make, request, score

from nextn.draft import DRAFT_WINDOW, NO_DRAFT, Shape, draft_window, tree_size
from nextn.kvcache import manager
from nextn.request import PromptGroup, SpeculativeParams
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.depth.value import DraftValue
from nextn.speculative.work import StepWork


class Never:
    """Automatic depth that has decided against drafts."""

    drafting, keeping, cutoff, state = False, True, None, None
    num_steps = 2

    def note(self, draft, accepted):
        assert draft is not NO_DRAFT

    def stepped(self, work, seconds, own=True, drafting=None):
        pass


class Whims(Never):
    """Drafts and none by turns, some long enough for more to be deferred than the drafter's window. At times
    nothing is kept."""

    def __init__(self):
        self.random, self.left = random.Random(3), 0

    def stepped(self, work, seconds, own=True, drafting=None):
        self.left -= 1
        if self.left < 0:
            self.drafting, self.left = self.random.random() < 0.5, self.random.choice([0, 3, 30, 100])
            self.keeping = self.drafting or self.random.random() < 0.5
            self.num_steps = self.random.randrange(1, 4)


@pytest.mark.parametrize("radix", [True, False])
@pytest.mark.parametrize(
    ("drafts", "shape"),
    [(0, CHAINS), (1, CHAINS), (3, CHAINS), (1, Shape(3, 3)), (3, Shape(2, 6)), (4, Shape(3, 12))],
    ids=str,
)
def test_texts_are_the_scripts(radix, drafts, shape):
    sched, ex = make(drafts=drafts, radix=radix, shape=shape)
    rng = random.Random(1)
    prompts = [[rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 60))] for _ in range(12)]
    for i, p in enumerate(prompts):
        sched.add(request(str(i), p, i, 120, max_tokens=rng.randrange(1, 50), ignore_eos=i % 2 == 0))
    params = {r.rid: (r.params.max_tokens, r.params.ignore_eos) for r in sched.waiting}
    got, reasons, _ = drain(sched, ex)
    for i, p in enumerate(prompts):
        max_tokens, ignore = params[str(i)]
        want = expected(p, max_tokens, 120, ignore)
        assert got.get(str(i), []) == want
        assert reasons[str(i)] == ("length" if len(want) == min(max_tokens, 120 - len(p)) else "stop")
    assert sched.kv.available == sched.kv.total_tokens // 4
    assert ex.largest <= 32


def test_accept_length_counts_the_bonus():
    sched, ex = make(drafts=2, skill=1.0)
    sched.add(request("a", [5], 0, 160, max_tokens=61, ignore_eos=True))
    _, _, steps = drain(sched, ex)
    # One step for the prompt, then 3 tokens a step: right drafts and the bonus.
    assert steps == 1 + 20
    assert sched.stats.spec.accept_length == 3.0
    assert sched.stats.spec.proposed == [20, 20]
    assert sched.stats.spec.accepted == [20, 20]


def test_pages_without_draft_entries_are_shared_and_not_drafted_on():
    never = Never()
    sched, ex = make(pages=60, auto=never, drafts=2)
    prompt = [5, 6, 7, 8, 9]
    sched.add(request("a", prompt, 0, 160, max_tokens=40, ignore_eos=True))
    while "a" in sched.by_rid:
        plan = sched.plan()
        sched.commit(plan, ex.run(plan))
        for req in sched.running:
            assert req.deferred == req.committed
        sched.check_integrity()
    assert not ex.entries
    never.drafting = True
    longer = [*prompt, *expected(prompt, 40, 160, True)]
    sched.add(request("b", longer, 1, 160, max_tokens=20, ignore_eos=True))
    plan = sched.plan()
    assert list(ex.states) == ["b"]
    assert plan.spans[0].start == plan.spans[0].draft_from == 44
    sched.commit(plan, ex.run(plan))
    drain(sched, ex)
    # What drafted from there on is true for those who come later, too.
    sched.add(request("c", [*longer, *expected(longer, 20, 160, True)], 2, 160, max_tokens=1))
    assert sched.plan().spans[0].draft_from == 44


def test_the_drafter_catches_up_with_a_window():
    never = Never()
    sched, ex = make(pages=400, auto=never, drafts=2)
    sched.add(request("a", [5], 0, 1500, max_tokens=1200, ignore_eos=True))
    for _ in range(300):
        plan = sched.plan()
        sched.commit(plan, ex.run(plan))
    never.drafting = True
    plan = sched.plan()
    req = sched.by_rid["a"]
    assert req.committed - DRAFT_WINDOW <= plan.spans[0].draft_from < req.committed - DRAFT_WINDOW + 4
    sched.commit(plan, ex.run(plan))
    assert req.deferred == 0
    sched.check_integrity()


class Watching(Never):
    def __init__(self):
        self.own = []

    def stepped(self, work, seconds, own=True, drafting=None):
        self.own.append(own)


def test_steps_of_requests_that_ask_for_a_depth_are_not_the_controllers():
    watching = Watching()
    sched, ex = make(pages=60, auto=watching, drafts=2)
    sched.add(request("a", [5], 0, 160, max_tokens=4, ignore_eos=True))
    drain(sched, ex)
    assert set(watching.own) == {True}
    asks = request("b", [6], 1, 160, max_tokens=6, ignore_eos=True)
    asks.params = asks.params.replace(speculative=SpeculativeParams(num_steps=2))
    sched.add(asks)
    sched.add(request("c", [7], 2, 160, max_tokens=6, ignore_eos=True))
    watching.own.clear()
    drain(sched, ex)
    assert watching.own[:3] == [False] * 3  # until b ends
    sched.add(request("d", [8], 3, 160, max_tokens=4, ignore_eos=True))
    watching.own.clear()
    drain(sched, ex)
    assert set(watching.own) == {True}


LONG = [1 + i % 40 for i in range(400)]


def planned(sched, ex):
    """Runs a step: of each request's tokens so many."""
    plan = sched.plan()
    sched.commit(plan, ex.run(plan))
    sched.check_integrity()
    return {span.rid: span.known for span in plan.spans}


def test_short_prompts_do_not_wait_for_long_ones():
    """They have half of a step's budget at most, so long ones get on, too."""
    sched, ex = make(pages=400, budget=64, running=16, drafts=0)
    for i in range(2):
        sched.add(request(f"long {i}", LONG, i, 900, max_tokens=1))
    assert planned(sched, ex) == {"long 0": 64}
    sched.add(request("medium", LONG[:20], 2, 900, max_tokens=1))
    for i in range(6):
        sched.add(request(f"short {i}", [50 + i] * 8, 3 + i, 900, max_tokens=1))
    assert planned(sched, ex) == {**{f"short {i}": 8 for i in range(4)}, "long 0": 32}
    assert planned(sched, ex) == {"short 4": 8, "short 5": 8, "long 0": 48}
    assert planned(sched, ex) == {"long 0": 64}


def test_but_for_longer_ones_of_a_higher_priority():
    sched, ex = make(pages=400, budget=64, running=16, drafts=0)
    first = request("first", LONG[:100], 0, 900, max_tokens=1)
    first.priority = 1
    sched.add(request("short", [50] * 8, 1, 900, max_tokens=1))
    sched.add(first)
    assert planned(sched, ex) == {"first": 64}
    sched.add(request("another", [51] * 8, 2, 900, max_tokens=1))
    assert planned(sched, ex) == {"first": 36, "short": 8, "another": 8}


def test_nor_do_they_take_the_pages_that_a_long_one_waits_for():
    sched, ex = make(pages=30, page_size=4, budget=64, running=16, drafts=0, radix=False)
    sched.add(request("runs", LONG[:80], 0, 900, max_tokens=40, ignore_eos=True))
    assert planned(sched, ex) == {"runs": 64}
    sched.add(request("long", LONG[:90], 1, 900, max_tokens=1))
    for i in range(3):
        planned(sched, ex)  # no room for it
        sched.add(request(f"short {i}", [50 + i] * 4, 2 + i, 900, max_tokens=1))
    assert list(planned(sched, ex)) == ["runs"]
    assert [r.rid for r in sched.waiting] == ["long", "short 0", "short 1", "short 2"]
    drain(sched, ex)


def test_what_was_not_kept_is_never_seen():
    """Who drafts again begins with the next page, and does not draft before that."""
    never = Never()
    never.keeping = False
    sched, ex = make(pages=400, auto=never, drafts=2)
    sched.add(request("a", [5], 0, 1500, max_tokens=1200, ignore_eos=True))
    sched.add(
        request(
            "b", [7], 1, 1500, max_tokens=1200, ignore_eos=True, speculative=SpeculativeParams(num_steps=1)
        )
    )
    for _ in range(25):
        plan = sched.plan()
        sched.commit(plan, ex.run(plan))
        assert not plan.keep
        assert not ex.kept
    never.drafting = never.keeping = True
    extended = []
    for _ in range(5):
        plan = sched.plan()
        [span] = [span for span in plan.spans if span.rid == "a"]
        extended.append((span.start, span.draft_from, span.extend, span.num_steps))
        assert [span.draft_from for span in plan.spans if span.rid == "b"] == [0]
        sched.commit(plan, ex.run(plan))
        sched.check_integrity()
    assert extended[:4] == [(25, 28, False, 0), (26, 28, False, 0), (27, 28, False, 0), (28, 28, True, 2)]
    assert extended[4][2:] == (True, 2)
    assert sched.by_rid["a"].deferred == 0


def test_retraction_keeps_the_text():
    sched, ex = make(pages=14, page_size=4, running=4, drafts=2)
    prompts = [[i + 1] * 6 for i in range(4)]
    for i, p in enumerate(prompts):
        sched.add(request(str(i), p, i, 56, max_tokens=40, ignore_eos=True))
    got, _, _ = drain(sched, ex)
    assert sched.stats.retracted > 0
    for i, p in enumerate(prompts):
        assert got[str(i)] == expected(p, 40, 56, True)


def test_prefill_is_chunked_beside_running_requests():
    sched, ex = make(pages=200, budget=16, drafts=2)
    sched.add(request("a", [3, 4], 0, 700, max_tokens=60, ignore_eos=True))
    for _ in range(3):
        plan = sched.plan()
        sched.commit(plan, ex.run(plan))
    sched.add(request("b", [7] * 100, 1, 700, max_tokens=2, ignore_eos=True))
    mixed = 0
    while "b" in sched.by_rid:
        plan = sched.plan()
        assert sum(s.known + len(s.draft) for s in plan.spans) <= 16
        mixed += {"a", "b"} == {s.rid for s in plan.spans}
        sched.commit(plan, ex.run(plan))
    assert mixed >= 6


def test_a_hit_computes_only_the_rest():
    sched, ex = make(pages=100, page_size=4)
    prompt = [1 + i % 7 for i in range(41)]
    for rid in ("a", "b"):
        sched.add(request(rid, prompt, 0, 300, max_tokens=4, ignore_eos=True))
        drain(sched, ex)
    assert sched.stats.cached_tokens == 40
    assert sched.stats.prompt_tokens == 82


def test_priority_goes_first():
    sched, _ = make(running=1)
    sched.add(request("low", [1], 0, 100, max_tokens=3))
    high = request("high", [2], 1, 100, max_tokens=3)
    high.priority = 5
    sched.add(high)
    assert [s.rid for s in sched.plan().spans] == ["high"]


def test_stop_tokens_and_min_tokens():
    prompt = [4, 9]
    text = expected(prompt, 30, 100, True)
    stop = text[5]
    first = text.index(stop)
    sched, ex = make(drafts=3, skill=1.0)
    sched.add(request("a", prompt, 0, 100, max_tokens=30, ignore_eos=True, stop_token_ids=(stop,)))
    got, reasons, _ = drain(sched, ex)
    assert got.get("a", []) == text[:first]
    assert reasons["a"] == "stop"


PROMPT = [1 + i % 7 for i in range(50)]


def choices(sched, count, prompt=PROMPT, limit=160, **params):
    """Requests of one group. Their texts differ by where they end."""
    group = PromptGroup()
    for i in range(count):
        own = {"max_tokens": 3 + i, **params}
        sched.add(request(str(i), prompt, i, limit, group, ignore_eos=True, **own))
    return group


def outputs(sched, ex, each=lambda steps: None):
    """rid -> (tokens, log-probabilities of the prompt); `each` is called before every step."""
    found, steps = {}, 0
    while sched.has_work():
        each(steps)
        steps += 1
        plan = sched.plan()
        assert plan.spans or not sched.has_work()
        for out in sched.commit(plan, ex.run(plan)):
            tokens, scores = found.setdefault(out.rid, ([], out.prompt_logprobs))
            assert out.prompt_logprobs in (None, scores)
            tokens += out.tokens
        sched.check_integrity()
    return found


@pytest.mark.parametrize("scored", [None, 2])
@pytest.mark.parametrize("radix", [True, False])
@pytest.mark.parametrize("budget", [16, 200])
def test_choices_share_their_prompt(radix, scored, budget):
    sched, ex = make(pages=200, budget=budget, running=8, radix=radix)
    group = choices(sched, 6, prompt_logprobs=scored)
    found = outputs(sched, ex)
    scores = [None, *map(score, range(49))] if scored is not None else None
    assert found == {str(i): (expected(PROMPT, 3 + i, 160, True), scores) for i in range(6)}
    assert sorted(ex.scored) == (list(range(49)) if scored is not None else [])  # once
    if radix:  # the first's pages, all but the last, whose successor the cache did not know
        assert sched.stats.prompt_tokens - sched.stats.cached_tokens == 50 + 5 * 2
    assert not group.members


@pytest.mark.parametrize("scored", [None, 0])
@pytest.mark.parametrize("radix", [True, False])
def test_choices_that_only_read_end_with_the_first(radix, scored):
    sched, ex = make(pages=200, budget=16, running=3, radix=radix)
    choices(sched, 9, max_tokens=0, prompt_logprobs=scored)
    found = outputs(sched, ex)
    scores = [None, *map(score, range(49))] if scored is not None else None
    assert found == {str(i): ([], scores) for i in range(9)}
    assert ex.computed == {"0": 50}
    assert (sched.stats.finished, sched.stats.prompt_tokens, sched.stats.cached_tokens) == (9, 450, 400)


@pytest.mark.parametrize("max_tokens", [0, 4])
@pytest.mark.parametrize("radix", [True, False])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_when_the_first_is_aborted_the_next_goes_on(at, radix, max_tokens):
    """Where it had come to: what was scored is not scored again, nor what was cached computed."""
    sched, ex = make(pages=200, budget=16, running=8, radix=radix)
    choices(sched, 4, max_tokens=max_tokens, prompt_logprobs=1)
    found = outputs(sched, ex, lambda steps: steps == at and sched.abort("0"))
    scores = [None, *map(score, range(49))]
    assert found == {str(i): (expected(PROMPT, max_tokens, 160, True), scores) for i in range(1, 4)}
    assert sorted(ex.scored) == list(range(49))
    if radix:
        assert ex.computed.get("0", 0) + ex.computed["1"] <= 50 + max(0, max_tokens - 1)


@pytest.mark.parametrize("max_tokens", [0, 12])
@pytest.mark.parametrize("pages", [15, 18, 40])
@pytest.mark.parametrize("radix", [True, False])
def test_choices_in_a_pool_that_is_too_small_for_them(radix, pages, max_tokens):
    sched, ex = make(pages=pages, budget=16, running=8, radix=radix)
    choices(sched, 5, limit=4 * pages, max_tokens=max_tokens, prompt_logprobs=1)

    def retract(steps):
        if steps % 5 == 2 and steps < 40 and sched.running:
            sched._retract(sched.running[-1])

    found = outputs(sched, ex, retract)
    scores = [None, *map(score, range(49))]
    want = expected(PROMPT, max_tokens, 4 * pages, True)
    assert found == {str(i): (want, scores) for i in range(5)}
    assert sorted(ex.scored) == list(range(49))


def test_who_waits_for_its_group_holds_nobody_up():
    sched, ex = make(pages=200, budget=64, running=8)
    choices(sched, 3)
    sched.add(request("other", [5, 6], 9, 160, max_tokens=2))
    plan = sched.plan()
    assert {s.rid for s in plan.spans} == {"0", "other"}
    sched.commit(plan, ex.run(plan))
    assert [s.rid for s in sched.plan().spans] == ["0", "other", "1", "2"]


def test_what_nobody_can_share_nobody_waits_for():
    """A prompt of less than a page, or no prefix cache."""
    for prompt, radix in ((PROMPT[:4], True), (PROMPT[:20], False)):
        sched, _ = make(pages=200, budget=200, running=8, radix=radix)
        choices(sched, 3, prompt)
        assert [s.rid for s in sched.plan().spans] == ["0", "1", "2"]


def test_a_step_of_scores_is_as_dear_as_one_without():
    def sizes(**params):
        sched, ex = make(pages=200, budget=24, score=0.5)
        sched.add(request("a", [3, 4], 0, 700, max_tokens=60, ignore_eos=True))
        plan = sched.plan()
        sched.commit(plan, ex.run(plan))
        sched.add(request("b", [7] * 100, 1, 700, ignore_eos=True, **params))
        found = []
        while "b" in sched.by_rid:
            plan = sched.plan()
            spans = {s.rid: s for s in plan.spans}
            a, b = spans["a"], spans["b"]
            assert a.known + len(a.draft) + b.known + 0.5 * len(b.scores) <= 24
            found.append(b.known)
            sched.commit(plan, ex.run(plan))
        return found

    plain, scored = sizes(max_tokens=0), sizes(max_tokens=0, prompt_logprobs=1)
    assert max(plain) == 12  # half of the budget, beside a request that decodes
    assert max(scored) == 8
    assert sum(plain) == sum(scored) == 100


def test_a_prompts_chunks_get_shorter_with_its_context_where_others_wait():
    def sizes(beside):
        sched, ex = make(pages=400, budget=48, context=0.02)
        if beside:
            sched.add(request("a", [3, 4], 0, 700, max_tokens=200, ignore_eos=True))
            plan = sched.plan()
            sched.commit(plan, ex.run(plan))
        sched.add(request("b", [7] * 300, 1, 700, max_tokens=0))
        found = []
        while "b" in sched.by_rid:
            plan = sched.plan()
            found += [s.known for s in plan.spans if s.rid == "b"]
            sched.commit(plan, ex.run(plan))
        return found

    alone, beside = sizes(False), sizes(True)
    assert alone[:-1] == [48] * 6  # nobody waits
    assert beside[0] == 20  # with the attention to one another, 24 rows' worth
    assert beside[:-1] == sorted(beside[:-1], reverse=True)
    assert beside[-2] == 3  # 24 over 1 + 0.02 * 300
    assert sum(alone) == sum(beside) == 300


def test_steps_with_a_prompts_last_part_are_no_plain_ones(monkeypatch):
    """What such a step takes must not be held to be usual beside requests that decode alone."""
    sched, ex = make(pages=200, budget=16)
    steps = []
    monkeypatch.setattr(sched.prompts, "note", lambda n, prompts, *_: steps.append((n, prompts)))

    def step():
        plan = sched.plan()
        nodes = sum(len(s.draft.tokens) for s in plan.spans)
        rows = sum(s.known for s in plan.spans) + nodes
        work = StepWork(rows, 0, (), sum(s.chooses for s in plan.spans), nodes)
        sched.commit(plan, StepResult(ex.run(plan).spans, work), 1.0)

    sched.add(request("a", [3, 4], 0, 700, max_tokens=50, ignore_eos=True))
    step()  # its prompt
    step()
    sched.add(request("b", [7] * 11, 1, 700, max_tokens=50, ignore_eos=True))
    step()
    step()
    assert steps == [(0, 2), (1, 0), (1, 8), (1, 3)]


def test_a_score_that_no_budget_is_enough_for():
    sched, ex = make(pages=200, budget=8, score=100.0)
    choices(sched, 2, PROMPT[:9], prompt_logprobs=0, max_tokens=0)
    assert outputs(sched, ex)["1"] == ([], [None, *map(score, range(8))])


class Chaos(RuleBasedStateMachine):
    """Random arrivals, aborts and steps over small pools."""

    @initialize(
        pages=st.integers(10, 40),
        page=st.sampled_from([1, 2, 4]),
        budget=st.sampled_from([8, 16, 40]),
        running=st.integers(1, 6),
        drafts=st.integers(0, 3),
        topk=st.sampled_from([1, 1, 2, 3]),
        radix=st.booleans(),
        skill=st.sampled_from([0.0, 0.6, 1.0]),
        auto=st.sampled_from([None, "whims", "learning"]),
        window=st.sampled_from([1, 5, DRAFT_WINDOW]),
        overlap=st.booleans(),
    )
    def start(self, pages, page, budget, running, drafts, topk, radix, skill, auto, window, overlap):
        if not drafts:
            auto = None
        shape = Shape(topk, min(2 * topk, tree_size(topk, drafts)))
        # As the engine does it: a request may fill the pool but for what its trees take besides.
        beyond = 0 if topk == 1 else max(shape.nodes, shape.scratch(drafts))
        controller = None
        if auto:
            controller = Whims()
            if auto == "learning":
                cost = StepCost(1e-3, 3e-4, a_pass=1e-4, pass_row=1e-5)
                controller = DepthController(cost, DraftValue(drafts, shape, cuts=False), {}, page)
        manager.draft_window = lambda page_size: max(window, page_size)
        self.sched, self.ex = make(
            pages + beyond, page, budget, running, drafts, radix, skill, shape, controller
        )
        self.limit = pages * page
        self.want, self.got, self.count = {}, {}, 0
        self.overlap, self.launched = overlap, None

    @rule(
        prompt=st.lists(st.integers(1, 3), min_size=1, max_size=30),
        max_tokens=st.integers(1, 20),
        priority=st.sampled_from([0, 0, 0, 1]),
        ignore=st.booleans(),
    )
    def add(self, prompt, max_tokens, priority, ignore):
        prompt = prompt[: self.limit - 1]
        rid = str(self.count)
        req = request(rid, prompt, self.count, self.limit, max_tokens=max_tokens, ignore_eos=ignore)
        req.priority = priority
        self.sched.add(req)
        self.want[rid] = expected(prompt, max_tokens, self.limit, ignore)
        self.got[rid] = []
        self.count += 1

    @rule(
        prompt=st.lists(st.integers(1, 3), min_size=1, max_size=30),
        lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        scored=st.sampled_from([None, 1]),
    )
    def add_choices(self, prompt, lengths, scored):
        prompt, group = prompt[: self.limit - 1], PromptGroup()
        for each in lengths:
            rid = str(self.count)
            params = {"max_tokens": each, "prompt_logprobs": scored, "ignore_eos": True}
            self.sched.add(request(rid, prompt, self.count, self.limit, group, **params))
            self.want[rid] = expected(prompt, each, self.limit, True)
            self.got[rid] = []
            self.count += 1

    @precondition(lambda self: self.sched.by_rid)
    @rule(data=st.data())
    def abort(self, data):
        rid = data.draw(st.sampled_from(sorted(self.sched.by_rid)))
        assert self.sched.abort(rid)
        assert not self.sched.abort(rid)
        del self.want[rid]

    @rule(n=st.integers(1, 4))
    def step(self, n):
        for _ in range(n):
            launched = self.launched or self.launch()
            assert bool(launched[0].spans) == self.sched.has_work() or launched is self.launched
            self.launched = None
            if self.overlap and launched[0].spans:
                following = self.launch()
                self.launched = following if following[0].spans else None
            for out in self.sched.commit(*launched, 2e-3):
                if out.prompt_logprobs is not None:
                    count = len(out.prompt_logprobs)
                    assert out.prompt_logprobs == [None, *map(score, range(count - 1))]
                self.got[out.rid] += out.tokens
                if out.finish_reason:
                    assert self.got[out.rid] == self.want.pop(out.rid)

    def launch(self):
        plan = self.sched.plan()
        return plan, self.ex.run(plan)

    @invariant()
    def integrity(self):
        if hasattr(self, "sched"):
            self.sched.check_integrity()

    def teardown(self):
        if hasattr(self, "sched"):
            manager.draft_window = draft_window
            while self.launched:
                self.step(n=1)
            got, _, _ = drain(self.sched, self.ex, check=False)
            for rid, tokens in self.want.items():
                assert self.got[rid] + got.get(rid, []) == tokens
            self.sched.check_integrity()
            assert self.sched.kv.available * self.sched.kv.page_size == self.sched.kv.total_tokens


Chaos.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)
TestChaos = Chaos.TestCase


def test_plan_is_empty_without_work():
    sched, _ = make()
    assert sched.plan() == Plan([])
