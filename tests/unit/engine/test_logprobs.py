"""Log-probabilities in the engine: what they are, that they depend on their row alone, and that none is
lost or told twice."""

import random

import pytest

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.sampling import logprobs

VOCAB = 4096  # of the fake model


def make(**options):
    options = {"context_length": 200, "threads": 1, "kv_cache_tokens": 2048, **options}
    return Engine(EngineConfig(model_path="fake:0.8,0.6", check_integrity=True, **options))


def run(engine, jobs):
    """rid -> (tokens, their logprobs, the prompt's), looking at every output on the way."""
    for rid, prompt, params in jobs:
        engine.add(Request(rid, list(prompt), params))
    tokens, logprobs, prompts = {}, {}, {}
    while engine.has_work():
        for out in engine.step():
            assert (out.prompt_logprobs is None) == (out.rid in tokens or prompt_unwanted(jobs, out.rid))
            tokens.setdefault(out.rid, []).extend(out.tokens)
            if out.prompt_logprobs is not None:
                prompts[out.rid] = out.prompt_logprobs
            if out.logprobs is not None:
                assert len(out.logprobs) == len(out.tokens)
                logprobs.setdefault(out.rid, []).extend(out.logprobs)
    return {rid: (tokens[rid], logprobs.get(rid), prompts.get(rid)) for rid, *_ in jobs}


def prompt_unwanted(jobs, rid):
    return next(params for name, _, params in jobs if name == rid).prompt_logprobs is None


def work(seed=0):
    rng = random.Random(seed)
    common = rng.choices(range(2, VOCAB), k=120)
    jobs = []
    for i in range(10):
        n = rng.choice([1, 2, 17, 33, 64, 100])
        prompt = common[:n] if i % 2 else rng.choices(range(2, VOCAB), k=n)
        params = SamplingParams(
            max_tokens=rng.choice([0, 1, 5, 20]),
            temperature=i % 3 / 2,
            seed=i,
            logprobs=[None, 0, 1, 3][i % 4],
            prompt_logprobs=[2, None, 0][i % 3],
            frequency_penalty=0.5 * (i % 2),
            ignore_eos=True,
        )
        jobs.append((str(i), prompt, params))
    return jobs


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_num_steps": 3},
        {"speculative_num_steps": 2, "chunked_prefill_size": 16, "max_running_requests": 5},
        {"speculative_num_steps": 2, "disable_radix_cache": True},
        {"speculative_num_steps": 0, "page_size": 1},
        {"speculative_num_steps": 2, "kv_cache_tokens": 216, "page_size": 4, "chunked_prefill_size": 32,
         "max_running_requests": 20},
    ],
    ids=str,
)  # fmt: skip
def test_they_do_not_depend_on_how_they_came_about(options):
    plain = make(speculative_num_steps=0, disable_radix_cache=True)
    alone = {job[0]: run(plain, [job])[job[0]] for job in work()}
    for rid, prompt, params in work():
        tokens, logprobs, prompts = alone[rid]
        assert (logprobs is None) == (params.logprobs is None)
        assert logprobs is None or [len(top) for _, top in logprobs] == [params.logprobs] * len(tokens)
        assert (prompts is None) == (params.prompt_logprobs is None)
        assert prompts is None or (prompts[0] is None and len(prompts) == len(prompt))
    engine = make(**options)
    for _ in range(2):  # the second time with whatever the first left in the prefix cache
        assert run(engine, work()) == alone


def test_retraction_in_the_middle_of_a_prompt():
    """Scored positions are kept, the others computed: neither lost nor told twice."""
    params = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=1, logprobs=1, ignore_eos=True)
    prompt = random.Random(3).choices(range(2, VOCAB), k=150)
    expected = run(make(speculative_num_steps=0, disable_radix_cache=True), [("a", prompt, params)])["a"]
    for radix in (True, False):
        engine = make(
            chunked_prefill_size=20, max_running_requests=4, page_size=8, disable_radix_cache=not radix
        )
        scheduler, spans = engine._scheduler, []
        plan = scheduler.plan

        def counted(plan=plan, spans=spans):
            made = plan()
            spans += made.spans
            return made

        scheduler.plan = counted
        engine.add(Request("a", list(prompt), params))
        got, steps = [], 0
        while engine.has_work():
            got += engine.step()
            steps += 1
            if steps in (2, 4, 6):
                scheduler._retract(scheduler.running[-1])
        assert engine.stats().retracted == 3
        assert [t for out in got for t in out.tokens] == expected[0]
        assert [p for out in got for p in out.logprobs] == expected[1]
        assert got[0].prompt_logprobs == expected[2]
        assert all(out.prompt_logprobs is None for out in got[1:])
        scored = [span.start + i for span in spans for i in span.scores]
        assert scored == list(range(149))
        # With a prefix cache, what was scored and shared is not even computed again.
        computed = sum(span.known for span in spans if span.start + span.known <= 150)
        assert (computed < 220) == radix


def test_a_prompt_to_be_scored_is_computed_but_shared():
    engine = make()
    prompt = list(range(100, 164))
    scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
    run(engine, [("a", prompt, scored)])
    run(engine, [("b", prompt, scored)])
    assert engine.stats().cached_tokens == 0
    run(engine, [("c", prompt, SamplingParams(max_tokens=1))])
    assert engine.stats().cached_tokens == 48  # all pages but the last, whose successor was not known


def test_the_stop_token_is_told_apart():
    params = SamplingParams(max_tokens=30, temperature=0, logprobs=2, ignore_eos=True)
    (tokens, logprobs, _) = run(make(), [("a", [5, 6, 7], params)])["a"]
    at = next(i for i in range(4, 30) if tokens[i] not in tokens[:i])
    engine = make()
    engine.add(Request("b", [5, 6, 7], params.replace(stop_token_ids=(tokens[at],))))
    outs = []
    while engine.has_work():
        outs += engine.step()
    assert [p for out in outs for p in out.logprobs] == logprobs[:at]
    assert outs[-1].matched == tokens[at]
    assert outs[-1].matched_logprob == logprobs[at]
    assert all(out.matched_logprob is None for out in outs[:-1])


def test_a_prompt_as_long_as_the_context_can_be_scored():
    engine = make()
    prompt = random.Random(2).choices(range(2, VOCAB), k=200)
    tokens, _, prompts = run(engine, [("a", prompt, SamplingParams(max_tokens=0, prompt_logprobs=0))])["a"]
    assert (tokens, len(prompts)) == ([], 200)
    with pytest.raises(ValueError, match="unless max_tokens is 0"):
        engine.add(Request("b", prompt, SamplingParams(max_tokens=1)))
    assert engine.stats().used_tokens == 0


def test_only_rows_that_asked_are_softmaxed(monkeypatch):
    seen = []
    tell = logprobs._compute
    monkeypatch.setattr(logprobs, "_compute", lambda *args: seen.append(len(args[1])) or tell(*args))
    engine = make(speculative_num_steps=3)
    run(engine, [("a", [5] * 30, SamplingParams(max_tokens=20, ignore_eos=True))])
    assert seen == []
    quiet = ("q", [7] * 30, SamplingParams(max_tokens=20, ignore_eos=True))
    run(engine, [quiet, ("b", [5] * 180, SamplingParams(max_tokens=8, logprobs=0, prompt_logprobs=0))])
    assert sum(seen) == 179 + 8
    assert max(seen) <= logprobs.ROWS


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_bad_counts_are_named(name):
    with pytest.raises(ValueError, match=f"^{name} is -1; it must be None or at least 0"):
        SamplingParams(**{name: -1}).check()
