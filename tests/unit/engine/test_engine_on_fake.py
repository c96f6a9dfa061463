"""The whole engine on the fake model: limits, ends and retractions at their edges, text by text.

The fake model reads its context back from the paged cache, so a text is right only if every slot is; its
drafts are right only if the drafter's slots are too.
"""

import random
import re

import pytest
from support.all_cases import few_or_all

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams, SpeculativeParams

CONTEXT = 72
DIALS = "fake:0.9,0.7"


def make(model=DIALS, **options):
    options = {"context_length": CONTEXT, "threads": 1, "kv_cache_tokens": 2048, **options}
    return Engine(EngineConfig(model_path=model, check_integrity=True, **options))


def work(seed):
    """(rid, prompt, params, priority): many prompts end next to the context's end, or share a beginning."""
    rng = random.Random(seed)
    common = rng.choices(range(2, 4096), k=CONTEXT)
    jobs = []
    for i in range(14):
        n = rng.choice([1, 15, 16, 17, CONTEXT - 1, CONTEXT - 2, CONTEXT - 4, rng.randrange(1, CONTEXT)])
        prompt = common[:n] if i % 2 else rng.choices(range(2, 4096), k=n)
        most = rng.choice([1, 2, 3, 500, rng.randrange(1, 40)])
        params = SamplingParams(
            max_tokens=most,
            min_tokens=min(most, rng.choice([0, 4])),
            temperature=rng.choice([0.0, 1.0]),
            seed=rng.randrange(2**64),
            frequency_penalty=rng.choice([0.0, 0.5]),
            top_p=rng.choice([1.0, 0.9]),
        )
        jobs.append((str(i), prompt, params, rng.choice([0, 0, 1, 5])))
    return jobs


def run(engine, jobs, seed=0, doomed=()):
    """rid -> (tokens, finish reason). Requests come at random times; the doomed are aborted at some time."""
    rng = random.Random(seed)
    todo, doomed = list(jobs), list(doomed)
    tokens, reasons = {rid: [] for rid, *_ in jobs}, {}
    while todo or engine.has_work():
        while todo and (rng.random() < 0.5 or not engine.has_work()):
            rid, prompt, params, priority = todo.pop(0)
            engine.add(Request(rid, prompt, params, priority=priority))  # two may share a list
        for out in engine.step():
            tokens[out.rid] += out.tokens
            if out.finish_reason is not None:
                reasons[out.rid] = out.finish_reason
        if doomed and rng.random() < 0.3:
            engine.abort(doomed[0])
            doomed = doomed[1:] if doomed[0] not in {rid for rid, *_ in todo} else doomed
    assert engine.stats().used_tokens == 0
    return {rid: (tokens[rid], reasons.get(rid)) for rid in tokens}


@pytest.fixture(scope="module")
def expected():
    """Two sets of requests, half of them with a stop token from the middle of their own text, and what
    each gives alone, without drafts and without a cache."""
    engine = make(speculative_num_steps=0, disable_radix_cache=True)
    found = []
    for seed in (1, 2):
        jobs = []
        for rid, prompt, params, priority in work(seed):
            text, _ = run(engine, [(rid, prompt, params, priority)])[rid]
            if len(text) > 2 and int(rid) % 2:
                params = params.replace(stop_token_ids=(text[len(text) // 2],))
            jobs.append((rid, prompt, params, priority))
        alone = {job[0]: run(engine, [job])[job[0]] for job in jobs}
        assert {reason for _, reason in alone.values()} == {"stop", "length"}
        found.append((jobs, alone))
    return found


OPTIONS = [
    {},
    {"speculative_num_steps": 3},
    {"speculative_num_steps": 16, "page_size": 1},
    {"speculative_num_steps": 2, "page_size": 1024},
    {"speculative_num_steps": 3, "chunked_prefill_size": 16, "max_running_requests": 14},
    {"speculative_num_steps": 5, "kv_cache_tokens": CONTEXT + 8, "page_size": 4},
    {"speculative_num_steps": 16, "kv_cache_tokens": 90, "page_size": 1, "disable_radix_cache": True},
    {"speculative_num_steps": 0, "kv_cache_tokens": 90, "page_size": 2},
    {"speculative_algorithm": "NEXTN+NGRAM", "kv_cache_tokens": 90, "page_size": 2},
]


@pytest.mark.parametrize(
    ("options", "number"),
    few_or_all(
        [(options, i % 2) for i, options in enumerate(OPTIONS)],
        [(options, 1 - i % 2) for i, options in enumerate(OPTIONS)],
    ),
    ids=str,
)
def test_texts_are_those_of_requests_alone(expected, options, number):
    """number: of the set of requests."""
    jobs, alone = expected[number]
    engine = make(**options)
    rng = random.Random(number)
    others = [(f"x{rid}", prompt, params, priority) for rid, prompt, params, priority in jobs[:5]]
    mixed = [*jobs, *others]
    rng.shuffle(mixed)
    got = run(engine, mixed, number, doomed=[rid for rid, *_ in others])
    assert {rid: got[rid] for rid in alone} == alone


def test_requests_that_outgrow_the_pool_are_retracted():
    jobs = [
        (str(i), [5 + i] * 8, SamplingParams(max_tokens=50, seed=i, ignore_eos=True), i) for i in range(3)
    ]
    want = run(make(speculative_num_steps=0), jobs)
    small = make(speculative_num_steps=3, kv_cache_tokens=92, page_size=4)
    assert run(small, jobs) == want
    assert small.stats().retracted > 0


def test_the_dial_is_the_acceptance():
    """With all drafts right, also those after a hit: a hit on a wrong NextN slot would spoil them."""
    prompt = list(range(100, 140))
    jobs = [("a", prompt, SamplingParams(max_tokens=31, temperature=0, ignore_eos=True), 0)]
    engine = make("fake:1", speculative_num_steps=2)
    run(engine, jobs)
    run(engine, [("b", *jobs[0][1:])])
    run(engine, [("c", [*prompt[:32], 7, 8], *jobs[0][2:])])
    stats = engine.stats()
    assert stats.cached_tokens == 32 + 16  # the second page of `c` has another successor
    assert stats.spec.proposed == stats.spec.accepted == [30, 30]
    assert stats.spec.accept_length == 3.0

    spoiled = make("fake:0.5,0", context_length=200, speculative_num_steps=2)
    params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
    run(spoiled, [(str(i), [i + 2, *prompt], params, 0) for i in range(8)])
    first, second = spoiled.stats().spec.accept_rates
    assert first == pytest.approx(0.5, abs=0.06)
    assert second == 0.0


@pytest.mark.parametrize("path", ["fake:", "fake:1.5", "fake:0.5,x", "fake:nan"])
def test_a_wrong_dial_is_refused(path):
    with pytest.raises(ValueError, match=r"after 'fake:' come rates in \[0, 1\]"):
        make(path)


def alone(engine, **speculative):
    """The tokens and the figures of one request."""
    params = SamplingParams(max_tokens=40, temperature=0, speculative=SpeculativeParams(**speculative))
    request = Request("a", [5, 6, 7], params)
    engine.add(request)
    while engine.has_work():
        engine.step()
    return request.tokens, request.spec


def test_a_request_says_how_deep():
    engine = make(speculative_num_steps=2)
    text, spec = alone(engine)
    assert len(spec.proposed) == 2
    for steps in (0, 1, 5):
        again, spec = alone(engine, num_steps=steps)
        assert again == text
        assert len(spec.proposed) == steps
        assert sum(spec.histogram) == spec.verify_steps


def test_a_request_says_how_deep_where_others_get_what_pays():
    engine = make("fake:1,1,1,1,1,1,1,1")
    text, spec = alone(engine)
    assert len(spec.proposed) <= 8
    for steps in (0, 1, 12):
        again, spec = alone(engine, num_steps=steps)
        assert again == text
        assert len(spec.proposed) == steps
    assert engine.stats().spec.accept_rate == 1.0


def test_speculative_defaults():
    """They are for requests that come later and say nothing themselves."""
    engine = make(speculative_num_steps=2)
    early = Request("early", [5, 6, 7], SamplingParams(max_tokens=40, temperature=0))
    engine.add(early)
    engine.set_speculative_defaults(SpeculativeParams(num_steps=4))
    text, spec = alone(engine)
    assert len(spec.proposed) == 4
    assert len(early.spec.proposed) == 2
    assert len(alone(engine, num_steps=1)[1].proposed) == 1
    engine.set_speculative_defaults(SpeculativeParams())
    again, spec = alone(engine)
    assert (again, len(spec.proposed)) == (text, 2)


@pytest.mark.parametrize("fields", [{"accept_threshold_single": 0.5}, {"accept_threshold_acc": 0.9}])
def test_thresholds_need_a_mode_that_has_them(fields):
    engine = make(speculative_num_steps=2)
    message = (
        f"^speculative.{next(iter(fields))} is .*: it applies to verify 'typical' only, and verify is 'exact'"
    )
    with pytest.raises(ValueError, match=message):
        alone(engine, **fields)
    with pytest.raises(ValueError, match=message):
        engine.set_speculative_defaults(SpeculativeParams(num_steps=4, **fields))
    assert engine.speculative_defaults == SpeculativeParams()
    assert not engine.has_work()


def test_defaults_need_a_drafter():
    engine = make(speculative_num_steps=0)
    with pytest.raises(ValueError, match="num_steps is 2: there is no drafter, so it can only be 0"):
        engine.set_speculative_defaults(SpeculativeParams(num_steps=2))
    with pytest.raises(ValueError, match=r"num_steps is 3: .* --speculative-num-steps above 0"):
        alone(engine, num_steps=3)
    assert alone(engine, num_steps=0) == alone(engine)
    engine.set_speculative_defaults(SpeculativeParams(num_steps=0, verify="exact"))


def test_own_params_before_defaults():
    own = SpeculativeParams(num_steps=0, accept_threshold_acc=0.0)
    defaults = SpeculativeParams(num_steps=3, verify="exact", accept_threshold_single=0.5)
    assert own.or_else(defaults) == SpeculativeParams(0, "exact", 0.5, 0.0)
    assert SpeculativeParams().or_else(defaults) == defaults
    assert own.or_else(SpeculativeParams()) == own


@pytest.mark.parametrize("algorithm", ["NGRAM", "NEXTN+NGRAM"])
def test_ngrams_have_no_probabilities_to_weigh(algorithm):
    engine = make(speculative_algorithm=algorithm, speculative_num_steps=2)
    for verify in ("rejection", "block"):
        with pytest.raises(ValueError, match=f"{verify}.*{re.escape(algorithm)} has none"):
            alone(engine, verify=verify)
        with pytest.raises(ValueError, match=f"{verify}.*{re.escape(algorithm)} has none"):
            engine.set_speculative_defaults(SpeculativeParams(verify=verify))
    assert alone(engine, verify="typical")[0] == alone(engine)[0]


def test_a_text_that_depends_on_depths_does_not_get_those_of_the_clock():
    engine = make()
    for verify in ("rejection", "block", "typical"):
        params = SamplingParams(max_tokens=40, speculative=SpeculativeParams(verify=verify))
        request = Request("a", [5, 6, 7], params)
        engine.add(request)
        while engine.has_work():
            engine.step()
        assert len(request.spec.proposed) == 2
