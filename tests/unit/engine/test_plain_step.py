"""Steps in one call have the results of the general way, drafts and cache entries included."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from support.all_cases import few_or_all
from support.checkpoints import random_tensors, tiny_config, write_checkpoint
from support.native_kernels import built_levels
from support.two_ways import Depth, TwoWays, Work, run, two_ways

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.cutoff import Cutoff
from nextn.engine.engine import Engine
from nextn.engine.runner import Runner
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors
from nextn.request import SamplingParams, SpeculativeParams

LEVELS = built_levels()
RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
CUTOFFS = {
    "none": None,
    "usual": Cutoff(RATES, row_cost=0.3, mean_rate=0.8, guess_cost=0.35, pass_cost=0.1),
    "passes cost": Cutoff(RATES, row_cost=0.6, mean_rate=0.8, guess_cost=0.2, pass_cost=0.9),
    "nothing is kept": Cutoff(RATES, row_cost=2.0, mean_rate=1.0, guess_cost=0.0, pass_cost=0.0),
}
TEXT = list(range(300, 340))
STOPS = tuple(range(200, 264))
GREEDY = SamplingParams(max_tokens=20, temperature=0)
# Requests of every kind of choice; prompts are read in chunks of 16 while others draft.
PLAIN = {
    "greedy": (TEXT[:3], GREEDY),
    "seed": (TEXT, SamplingParams(max_tokens=14, seed=2**63 + 5, stream=2)),
    "top_k": (TEXT[5:], SamplingParams(max_tokens=15, seed=4, top_k=20, temperature=0.7)),
    "top_p": (TEXT[9:], SamplingParams(max_tokens=15, seed=1, top_p=0.9, min_p=0.01)),
    "shallow": (TEXT[:20], GREEDY.replace(speculative=SpeculativeParams(num_steps=1))),
    "none": (TEXT[2:9], GREEDY.replace(speculative=SpeculativeParams(num_steps=0), ignore_eos=True)),
    "deep": (TEXT[1:30], GREEDY.replace(speculative=SpeculativeParams(num_steps=6), ignore_eos=True)),
    "stops": (TEXT[4:8], GREEDY.replace(seed=3, temperature=1.0, stop_token_ids=STOPS)),
    "short": (TEXT[:1], GREEDY.replace(max_tokens=2)),
    "one": (TEXT[:17], GREEDY.replace(max_tokens=1)),
}
# Those that need more than a draw, always or at first.
OTHERS = {
    "min_tokens": (TEXT[:5], GREEDY.replace(min_tokens=6)),
    "penalty": (TEXT[:7], GREEDY.replace(repetition_penalty=1.2, max_tokens=6)),
    "logprobs": (TEXT[:6], GREEDY.replace(logprobs=2, max_tokens=5)),
    "scored": (TEXT[3:25], GREEDY.replace(prompt_logprobs=1, max_tokens=12)),
    "typical": (TEXT[:9], SamplingParams(max_tokens=8, seed=6, speculative=SpeculativeParams(3, "typical"))),
    "block": (TEXT[:4], SamplingParams(max_tokens=8, seed=7, speculative=SpeculativeParams(2, "block"))),
}


def without_depths(work: Work) -> Work:
    """For an engine that has no drafter."""
    return {rid: (prompt, p.replace(speculative=SpeculativeParams())) for rid, (prompt, p) in work.items()}


@pytest.mark.parametrize(
    ("level", "threads"),
    few_or_all(
        [(level, 2 - i % 2) for i, level in enumerate(LEVELS)],
        [(level, 1 + i % 2) for i, level in enumerate(LEVELS)],
    ),
)
def test_requests_of_every_kind(level: str, threads: int) -> None:
    engine, both = two_ways(3, cpu_isa=level, threads=threads)
    run(engine, PLAIN)
    assert both.plain > 20
    assert both.general == 0


@pytest.mark.parametrize("num_steps", [0, 4])
def test_beside_requests_that_need_more(num_steps: int) -> None:
    engine, both = two_ways(num_steps)
    run(engine, without_depths({**OTHERS, **PLAIN}) if num_steps == 0 else {**OTHERS, **PLAIN}, seed=1)
    assert both.plain > 5
    assert both.general > 5


@pytest.mark.parametrize("name", few_or_all(["none", "usual"], ["passes cost", "nothing is kept"]))
def test_automatic_depth(name: str) -> None:
    """With a cutoff, and with steps that do not draft: these keep what is caught up with later."""
    engine, both = two_ways(3)
    engine._scheduler.depth.auto = Depth(3, CUTOFFS[name], off=range(8, 20))  # type: ignore[assignment]
    run(engine, PLAIN, seed=2)
    assert both.plain > 20
    assert 0 < both.general < 5  # where they catch up


@pytest.mark.parametrize("seed", few_or_all([0], [1]))
def test_requests_that_come_while_nobody_drafts(seed: int) -> None:
    """All but the last token of their prompt is in the cache, so their first step has a row of each request,
    as the others have; but only those were kept before."""
    engine, both = two_ways(3)
    engine._scheduler.depth.auto = Depth(3, None, [step for step in range(1000) if step % 40 > 3])  # type: ignore[assignment]
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    run(engine, {str(i): (TEXT[:17], params) for i in range(8)}, seed)
    assert both.plain > 20


def test_coarse_weights() -> None:
    engine, both = two_ways(3, speculative_draft_model_quantization="w8a16", quantization="w8a16")
    run(engine, PLAIN, seed=3)
    assert both.general == 0


def assert_some_fail(both: TwoWays) -> None:
    assert any(span.error for result in both.results for span in result.spans)
    assert both.general == 0


@pytest.mark.parametrize("share", few_or_all([0.02], [0.2]))
def test_logits_that_are_not_numbers(share: float) -> None:
    """After some tokens, of which a draft spoils the rows before it, too."""
    rng = random.Random(5)
    engine, both = two_ways(3)
    spoilt = [t for t in range(4000) if t not in TEXT and rng.random() < share]
    for runner in (both.one_call, both.other):
        runner.model.weights.embedding[spoilt] = torch.nan  # type: ignore[attr-defined]
    run(engine, PLAIN, seed=4)
    assert_some_fail(both)


@pytest.mark.parametrize("column", few_or_all([8], [1, 11]))
def test_logits_that_are_infinite(column: int) -> None:
    """Those of one token, in rows whose hidden state is large at one place: drafts before them hold."""
    engine, both = two_ways(3)
    with safe_open(model_folder(EMBEDDED) / "model.safetensors", "pt") as stored:
        head = stored.get_tensor("lm_head.weight")
    head[4000] = 0
    head[4000, column] = 3e38
    for runner in (both.one_call, both.other):
        runner.model.place("lm_head.weight", head)  # type: ignore[attr-defined]
    run(engine, {rid: (prompt, p.replace(max_tokens=60)) for rid, (prompt, p) in PLAIN.items()}, seed=4)
    assert_some_fail(both)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = tiny_config()
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(config), 1))
    return str(write_checkpoint(tmp_path_factory.mktemp("small"), config, tensors))


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_simulate_accept_length": 1.5},
        {"speculative_eagle_topk": 2},
        {"speculative_algorithm": "NGRAM"},
        {"speculative_algorithm": "NEXTN+NGRAM"},
        {"kernel_backend": "reference"},
    ],
    ids=str,
)
def test_engines_without_such_steps(small_model: str, options: dict[str, Any]) -> None:
    usual = {"kernel_backend": "cpu", "kv_cache_tokens": 1024, "threads": 1}
    for changes in ({}, options):
        executor = Engine(EngineConfig(small_model, **{**usual, **changes}))._executor  # type: ignore[arg-type]
        assert isinstance(executor, Runner)
        assert (executor.plain is None) == bool(changes)


# --- any mix of requests

params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    min_tokens=st.sampled_from([0, 0, 0, 1]),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_k=st.sampled_from([-1, -1, 1, 30]),
    top_p=st.sampled_from([1.0, 1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 3),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), STOPS]),
    speculative=st.builds(SpeculativeParams, num_steps=st.sampled_from([None, None, 0, 1, 5])),
)
prompts = st.lists(st.integers(3, 3999), min_size=1, max_size=40)


@cache
def engines(num_steps: int) -> tuple[Engine, TwoWays]:
    """The same for every example: nothing is left of an earlier one but the prefix cache."""
    return two_ways(num_steps, threads=1 + num_steps % 2)


@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(prompts, params), min_size=1, max_size=6),
    st.sampled_from([0, 2, 3]),
    st.sampled_from(sorted(CUTOFFS)),
    st.integers(0, 8),
    st.integers(0, 10),
    st.integers(0, 99),
)
def test_any_mix(
    requests: list[tuple[list[int], SamplingParams]],
    num_steps: int,
    cutoff: str,
    first: int,
    pause: int,
    seed: int,
) -> None:
    engine, both = engines(num_steps)
    auto = Depth(num_steps, CUTOFFS[cutoff], off=range(first, first + pause)) if num_steps else None
    engine._scheduler.depth.auto = auto  # type: ignore[assignment]
    both.plain = 0
    work = {str(i): each for i, each in enumerate(requests)}
    run(engine, work if num_steps else without_depths(work), seed)
    assert both.plain or any(p.min_tokens for _, p in requests)  # which may be all that they get
