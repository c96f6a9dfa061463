"""Prompts whose pages another engine computed: texts, drafts and log-probabilities are those of one engine,
whoever breaks off, and no page is lost on either side."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.all_cases import few_or_all
from support.native_kernels import built_levels
from support.two_engines import TwoEngines

from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams, SpeculativeParams
from nextn.tokenizer import Tokenizer

from .test_engine_on_fake import make, work


def texts(engine: Any, jobs: Any, seed: int = 0, doomed: list[str] | None = None) -> dict[str, Any]:
    """Of each: tokens, reason, log-probabilities. Requests come at random times; the doomed are aborted at
    some time."""
    rng = random.Random(seed)
    todo, doomed = list(jobs), list(doomed or ())
    found: dict[str, Any] = {rid: ([], [], []) for rid, *_ in jobs}
    while todo or engine.has_work():
        while todo and (rng.random() < 0.5 or not engine.has_work()):
            rid, prompt, params, priority = todo.pop(0)
            if isinstance(engine, TwoEngines):
                engine.add(rid, prompt, params, priority)
            else:
                engine.add(Request(rid, list(prompt), params, priority))
        for out in engine.step():
            tokens, logprobs, last = found[out.rid]
            tokens += out.tokens
            logprobs += out.logprobs or []
            if out.finish_reason is not None:
                last += [out.finish_reason, out.matched]
        if doomed and rng.random() < 0.3:
            engine.abort(doomed.pop())
    return found


@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(["radix", "small", "naive", "chunks"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=3, deadline=None)
def test_texts_of_one_engine(seed: int, breaks: float, cache: str, aborts: bool, ahead: bool) -> None:
    """The fake model reads its context back from the pages: one wrong slot is another text."""
    jobs = [job for job in work(seed) if len(job[1]) > 1]
    wanted = texts(make(), jobs, seed)
    options = dict({"small": {"kv_cache_tokens": 192}}.get(cache) or CACHES[cache])
    options["overlap_schedule"] = "on" if ahead else "off"
    both = TwoEngines(make(**options), make(**options), random.Random(seed), breaks)
    doomed = [rid for rid, *_ in jobs[::3]] if aborts else []
    found = texts(both, jobs, seed, doomed)
    for rid, _, _, _ in jobs:
        if rid not in doomed:
            assert found[rid] == wanted[rid]
    for engine in (both.prefill, both.decode):
        for rid in list(engine.transfers.held):
            engine.transfers.release(rid)
        assert not engine.transfers.fetching
        assert engine.stats().used_tokens == 0
        engine.check_integrity()


def test_without_a_fallback_it_ends_in_an_error() -> None:
    both = TwoEngines(make(), make(), breaks=1.0, fallback=False)
    both.add("a", list(range(2, 60)), SamplingParams(max_tokens=4))
    outs = []
    while both.has_work():
        outs += both.step()
    assert [(out.finish_reason, out.error_code, out.tokens) for out in outs] == [
        ("error", "prefill_failed", [])
    ]
    assert both.decode.stats().used_tokens == 0


DRAFTS: dict[str, dict[str, Any]] = {
    "off": {"speculative_num_steps": 0},
    "auto": {},
    "fixed": {"speculative_num_steps": 3},
    "trees": {"speculative_num_steps": 2, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 8},
}
CACHES: dict[str, dict[str, Any]] = {
    "radix": {},
    "naive": {"disable_radix_cache": True},
    "chunks": {"chunked_prefill_size": 16, "max_running_requests": 4},
    "retracted": {"kv_cache_tokens": 160, "page_size": 4},
}


CELLS = set(itertools.product(DRAFTS, CACHES, (0.0, 1.0)))
# Every way of drafting and every cache but "naive", both greedily and seeded.
FEW = [
    ("off", "chunks", 0.0), ("off", "radix", 1.0),
    ("auto", "radix", 0.0), ("auto", "retracted", 1.0),
    ("fixed", "retracted", 0.0), ("fixed", "chunks", 1.0),
    ("trees", "chunks", 0.0), ("trees", "retracted", 1.0),
]  # fmt: skip


@functools.cache
def encoded() -> list[list[int]]:
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    return [tokenizer.encode(prompt) for prompt in heldout_prompts(4)]


def jobs_of(temperature: float, length: int = 90) -> list[tuple[str, list[int], SamplingParams, int]]:
    made = []
    for i, prompt in enumerate(encoded()):
        prompt = prompt[:length]
        params = SamplingParams(
            max_tokens=24 if length == 90 else 60,
            temperature=temperature,
            seed=i,
            ignore_eos=True,
            logprobs=2 if i % 2 else None,
        )
        made.append((str(i), prompt, params, 0))
    return made


def engine_of(**options: Any) -> Engine:
    return Engine(EngineConfig(threads=1, check_integrity=True, step_cost_cache="off", **options))


@functools.cache
def expected(temperature: float, length: int) -> dict[str, Any]:
    return texts(engine_of(speculative_num_steps=0), jobs_of(temperature, length))


@pytest.mark.skipif(not built_levels(), reason="no native kernels")
@pytest.mark.parametrize(("drafts", "cache", "temperature"), few_or_all(FEW, sorted(CELLS - set(FEW))))
def test_embedded_model(drafts: str, cache: str, temperature: float) -> None:
    options = DRAFTS[drafts] | CACHES[cache]
    length = 20 if cache == "retracted" else 90
    roomy = options | ({"kv_cache_tokens": 2048} if cache == "retracted" else {})
    both = TwoEngines(engine_of(**roomy), engine_of(**options), breaks=0.2, most=9)
    assert texts(both, jobs_of(temperature, length), 3) == expected(temperature, length)
    assert both.pages > 0
    if cache == "retracted":
        assert both.decode.stats().retracted > 0


@pytest.mark.skipif(not built_levels(), reason="no native kernels")
@pytest.mark.parametrize("drafts", ["fixed", "trees"])
def test_acceptance_of_one_engine(drafts: str) -> None:
    """From the first draft on: each request alone, as then its drafts do not depend on when others come."""
    options = DRAFTS[drafts]
    one = engine_of(**options)
    both = TwoEngines(engine_of(**options), engine_of(**options))
    asked = SpeculativeParams(num_steps=options["speculative_num_steps"])
    for rid, prompt, params, _ in jobs_of(0.0)[:2]:
        steps = []
        for engine in (one, both):
            params = params.replace(draft_steps=True, speculative=asked)
            if isinstance(engine, TwoEngines):
                engine.add(rid, prompt, params)
            else:
                engine.add(Request(rid, list(prompt), params))
            outs = []
            while engine.has_work():
                outs += engine.step()
            steps.append([out.step and (list(out.step.tokens), list(out.step.accepted)) for out in outs])
            assert sum(outs[-1].spec.accepted) > 0
        assert steps[0] == steps[1]
