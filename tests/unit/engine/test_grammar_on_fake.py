"""Grammars and biases in the whole engine, on the fake model: the same text however it is drafted."""

import random

import pytest
from support.toy_grammar import ToyGrammar

from nextn.config import EngineConfig
from nextn.constraint import Constraint
from nextn.draft import AUTO_STEPS, MAX_AUTO_STEPS, MAX_DRAFTS
from nextn.drafting_state import DraftingState
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.depth.value import Setting

V = 4096
ANY = Constraint("regex", "")  # the engine is given grammars that are compiled


def make(model="fake:0.9,0.7", **options):
    options = {"context_length": 96, "threads": 1, "kv_cache_tokens": 2048, **options}
    return Engine(EngineConfig(model_path=model, check_integrity=True, **options))


def work():
    """(rid, prompt, params, what its grammar is made of or None)"""
    rng = random.Random(3)
    jobs = []
    for i in range(16):
        params = SamplingParams(
            max_tokens=rng.choice([5, 20, 40]),
            min_tokens=rng.choice([0, 4]),
            temperature=rng.choice([0.0, 1.0]),
            seed=i,
            frequency_penalty=rng.choice([0.0, 0.7]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            logit_bias=rng.choice([{}, {t: rng.uniform(-9, 9) for t in rng.sample(range(V), 200)}]),
            ignore_eos=rng.random() < 0.3,
            logprobs=rng.choice([None, 2]),
            top_k=rng.choice([-1, 20]),
            constraint=ANY if i % 4 else None,
        )
        kind = {"length": rng.choice([1, 7, 25, 99]), "spread": rng.choice([2, 3, 1500]), "salt": i}
        kind["narrow"] = 9 if i % 3 == 1 else 0
        prompt = rng.choices(range(2, V), k=rng.randrange(1, 40))
        jobs.append((str(i), prompt, params, kind if i % 4 else None))
    return jobs


def run(engine, jobs, retract=False):
    """rid -> (tokens, finish reason, log-probabilities). retract: every third step the last has to go."""
    for rid, prompt, params, kind in jobs:
        grammar = None if kind is None else ToyGrammar(V, **kind)
        engine.add(Request(rid, list(prompt), params, grammar=grammar))
    found = {rid: [[], None, []] for rid, *_ in jobs}
    while engine.has_work():
        for out in engine.step():
            result = found[out.rid]
            result[0] += out.tokens
            result[1] = (out.finish_reason, out.matched)
            result[2] += out.logprobs or []
        scheduler = engine._scheduler
        if retract and scheduler.stats.steps % 3 == 0 and len(scheduler.running) > 1:
            scheduler._retract(scheduler.running[-1])
    return found


@pytest.fixture(scope="module")
def alone():
    engine = make(speculative_num_steps=0, disable_radix_cache=True)
    found = {}
    for job in work():
        found |= run(engine, [job])
    return found


def test_texts_keep_to_their_grammars(alone):
    reasons = set()
    for rid, _, params, kind in work():
        tokens, (reason, matched), _ = alone[rid]
        if kind is None:
            continue
        grammar = ToyGrammar(V, **kind)
        assert grammar.advance(tokens) == len(tokens)
        if reason == "stop":
            assert grammar.accepting
            assert (matched is None) == (not grammar.mask().any())
        else:
            assert len(tokens) == params.max_tokens
        reasons.add((reason, matched is None))
    assert reasons == {("stop", True), ("stop", False), ("length", True)}


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_num_steps": 1},
        {"speculative_num_steps": 3},
        {"speculative_num_steps": 16, "page_size": 1},
        {"speculative_num_steps": 3, "chunked_prefill_size": 16, "max_running_requests": 14},
        {"speculative_num_steps": 5, "kv_cache_tokens": 112, "page_size": 4},
        {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 12},
        {"speculative_num_steps": AUTO_STEPS},
        {"speculative_algorithm": "NGRAM", "speculative_num_steps": 3},
        {"speculative_num_steps": 0, "kv_cache_tokens": 112, "page_size": 2},
    ],
    ids=str,
)
def test_texts_and_logprobs_do_not_depend_on_drafts(alone, options):
    engine = make(**options)
    small = "kv_cache_tokens" in options
    assert run(engine, work(), retract=small) == alone
    assert (engine.stats().retracted > 0) == small


def test_right_drafts_hold_under_a_grammar():
    """Drafter and target are masked alike, so a drafter that is always right stays so."""
    engine = make("fake:1", speculative_num_steps=3)
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, constraint=ANY)
    run(engine, [("a", [5, 6], params, {"length": 999, "spread": 40})])
    assert min(engine.stats().spec.accept_rates) == 1.0


def test_forced_tokens_are_drafts_that_hold():
    """More of them than drafts are asked for; and what is drafted in between stays right."""
    engine = make("fake:1", speculative_num_steps=2)
    params = SamplingParams(max_tokens=80, seed=3, ignore_eos=True, constraint=ANY)
    found = run(engine, [("a", [5, 6], params, {"length": 999, "spread": 40, "narrow": 9})])
    spec = engine.stats().spec
    assert 8 < len(spec.proposed) <= MAX_DRAFTS
    assert min(spec.accept_rates) == 1.0
    slow = make("fake:1", speculative_num_steps=0)
    assert run(slow, [("a", [5, 6], params, {"length": 999, "spread": 40, "narrow": 9})]) == found
    assert slow.stats().spec.verify_steps > 4 * spec.verify_steps


def test_who_asks_for_no_drafts_gets_none_that_are_forced():
    engine = make(speculative_num_steps=2)
    params = SamplingParams(max_tokens=30, constraint=ANY, speculative=SpeculativeParams(num_steps=0))
    run(engine, [("a", [5, 6], params, {"length": 999, "narrow": 9})])
    assert not engine.stats().spec.proposed


def test_forced_drafts_tell_automatic_depth_nothing(monkeypatch):
    noted = []
    monkeypatch.setattr(DepthController, "note", lambda self, draft, accepted: noted.append(len(draft)))
    monkeypatch.setattr(DepthController, "_plan", lambda self, *_: two(self))

    def two(controller):  # whatever pays here
        controller._setting = Setting(2, None, 2.0, 1.0)
        controller.state, controller._mean = DraftingState(True, 1, 2.0, ""), 1.0

    engine = make("fake:1", speculative_num_steps=AUTO_STEPS)
    params = SamplingParams(max_tokens=80, seed=3, ignore_eos=True, constraint=ANY)
    run(engine, [("a", [5, 6], params, {"length": 999, "spread": 40, "narrow": 9})])
    assert max(noted, default=0) <= MAX_AUTO_STEPS < len(engine.stats().spec.proposed)


@pytest.mark.parametrize("mode", ["rejection", "block", "typical"])
def test_other_verify_modes_keep_to_the_grammar(mode):
    engine = make("fake:0.8", speculative_num_steps=3)
    params = SamplingParams(
        max_tokens=40, temperature=1.0, seed=4, constraint=ANY, speculative=SpeculativeParams(verify=mode)
    )
    kind = {"length": 30, "spread": 50, "narrow": 5}
    tokens, (reason, _), _ = run(engine, [("a", [5, 6], params, kind)])["a"]
    grammar = ToyGrammar(V, **kind)
    assert grammar.advance(tokens) == len(tokens)
    assert reason == "stop"


@pytest.mark.parametrize("steps", [0, 3])
def test_a_grammar_that_cannot_go_on_ends_its_request_alone(steps):
    engine = make(speculative_num_steps=steps)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, constraint=ANY)
    jobs = [("a", [5], params, {"length": 9, "dead": 6}), ("b", [6], params, {"length": 9})]
    found = run(engine, jobs)
    assert found["a"][1][0] == "error"
    assert len(found["a"][0]) == 6
    assert found["b"][1] == ("stop", None)
    assert len(found["b"][0]) == 9


@pytest.mark.parametrize("steps", [0, 3])
def test_a_grammar_that_came_to_a_limit_between_steps_is_the_reason(steps):
    """Nothing is allowed then, so nothing can be chosen; that is no fault of the logits."""

    class Limited(ToyGrammar):
        """As others of the same constraint may bring it to its limit."""

        failure = "it came to a limit"

        def mask(self):
            return super().mask() & False

    engine = make(speculative_num_steps=steps)
    params = SamplingParams(max_tokens=20, temperature=0, constraint=ANY)
    engine.add(Request("a", [5], params, grammar=Limited(V, length=9)))
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    assert (outputs[-1].error_code, outputs[-1].error) == ("grammar_error", "it came to a limit")


def test_a_constraint_needs_its_grammar():
    with pytest.raises(ValueError, match="the request has a constraint and no grammar"):
        make().add(Request("a", [5], SamplingParams(constraint=ANY)))
