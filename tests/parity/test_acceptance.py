"""Drafts and their acceptance, step by step, equal a slow cache-free reference of NextN: of one layer that is
chained, of one for each depth, and of two that are chained from the third depth on.

A wrong detail in drafting never changes a text, only how many drafts hold: it would show only here.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from parity.engine_steps import Trace, make_engine, run
from parity.nextn_reference import NextNReference
from parity.oracle import TINY, random_checkpoint, tiny_prompts
from support.all_cases import few_or_all
from support.checkpoints import write_checkpoint

from nextn.request import SamplingParams

ARCHITECTURES = {
    "random": "DeepseekV3ForCausalLM", "glm": "Glm4MoeForCausalLM", "mimo": "MiMoForCausalLM",
}  # fmt: skip
SAMPLING = {"greedy": 0.0, "seeded": 1.0}
SETUPS = ("tiny-1", "random-1", "random-2", "glm-1", "mimo-2")


class Setup:
    """A checkpoint, its reference and prompts; the engines are made by the tests."""

    def __init__(self, folder: Path, prompts: list[list[int]], max_tokens: int, layers: int = 1) -> None:
        self.naive = folder.name.startswith("glm")
        self.folder, self.prompts, self.max_tokens, self.layers = folder, prompts, max_tokens, layers
        self.reference = NextNReference(folder, count=layers)
        self.vocab_size = self.reference.target.config.vocab_size

    def params(self, sampling: str) -> SamplingParams:
        temperature = SAMPLING[sampling]
        return SamplingParams(max_tokens=self.max_tokens, temperature=temperature, seed=5, ignore_eos=True)

    def check(self, trace: Trace) -> None:
        """Every step of a trace: its drafts follow from the tokens before it, and its tokens too."""
        n = len(trace.prompt)
        for step in trace.steps:
            before = trace.tokens[:n]
            if step.drafts:
                assert list(step.drafts) == self.reference.drafts(before, len(step.drafts), trace.params), n
            assert list(step.tokens) == self.reference.verify(before, step.drafts, trace.params), n
            n += len(step.tokens)
        assert n == len(trace.prompt) + trace.params.max_tokens


@pytest.fixture(scope="module", params=SETUPS)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    kind, _, number = request.param.partition("-")
    layers = int(number)
    if kind == "tiny":
        if not TINY.exists():
            pytest.skip("nextn-tiny is not in the package yet")
        return Setup(TINY, tiny_prompts(), 12, layers)
    config, tensors = random_checkpoint({"num_nextn_predict_layers": layers}, 3, ARCHITECTURES[kind])
    folder = write_checkpoint(tmp_path_factory.mktemp(kind), config, tensors)
    rng = random.Random(0)
    prompts = [rng.choices(range(config["vocab_size"]), k=k) for k in (1, 6, 37)]
    return Setup(folder, prompts, 12, layers)


@pytest.mark.parametrize(
    ("setup", "num_drafts", "sampling"),
    [("random-1", 1, "greedy"), *((setup, 3, "seeded") for setup in SETUPS)],
    indirect=["setup"],
)
def test_every_step_equals_the_reference(setup: Setup, num_drafts: int, sampling: str) -> None:
    params = setup.params(sampling)
    engine = make_engine(setup.folder, num_drafts)
    traces = run(engine, {str(i): (prompt, params) for i, prompt in enumerate(setup.prompts)})
    accepted = 0
    for trace in traces.values():
        assert trace.steps == setup.reference.generate(trace.prompt, num_drafts, params)
        accepted += sum(s.accepted for s in trace.steps)
    if sampling == "seeded":
        assert accepted > 0  # or nothing but refusals was compared


@pytest.mark.parametrize("setup", few_or_all(["random-2", "glm-1"], ["random-1", "mimo-2"]), indirect=True)
def test_prefix_cache_hit(setup: Setup) -> None:
    """The same prompt again, and two that leave it: within a page (pages hold 4), and at the end of one. What
    is computed after it is as if there were no cache."""
    first = setup.prompts[2]
    params = setup.params("seeded")
    warm = make_engine(setup.folder, 3)
    run(warm, {"first": (first, params)})
    for shared in (len(first), 18, 16) if setup.folder.name.startswith("random") else (16,):
        prompt = first[:shared] + [(t + 1) % setup.vocab_size for t in first[shared : shared + 5]]
        hit = run(warm, {"hit": (prompt, params)})["hit"]
        assert hit.last is not None
        # A page's last drafter entry is made with the token after the page: of 16 shared tokens only 12 hold.
        # The last of several layers looks further still.
        assert hit.last.cached_tokens == (shared - setup.layers) // 4 * 4
        setup.check(hit)


@pytest.mark.parametrize(
    "setup", few_or_all(["random-1", "mimo-2"], ["tiny-1", "random-2", "glm-1"]), indirect=True
)
def test_hit_on_generated_tokens(setup: Setup) -> None:
    """A second turn: its prompt is the first one and what was generated, with drafts or without."""
    params = setup.params("greedy")
    engine = make_engine(setup.folder, 3)
    first = run(engine, {"a": (setup.prompts[2], params)})["a"]
    again = run(engine, {"b": (first.tokens[:-8], params.replace(max_tokens=8))})["b"]
    assert again.last is not None
    assert again.last.cached_tokens == (len(again.prompt) - setup.layers) // 4 * 4
    assert again.tokens == first.tokens
    setup.check(again)


@pytest.mark.parametrize("setup", few_or_all(["random-2", "glm-1"], ["random-1"]), indirect=True)
def test_retraction(setup: Setup) -> None:
    """A pool too small for all: whoever is retracted drafts as if nothing had happened. One setup has no
    prefix cache."""
    params = setup.params("seeded").replace(max_tokens=16)
    work = {f"{i}{again}": (prompt, params) for i, prompt in enumerate(setup.prompts) for again in "ab"}
    longest = max(len(p) for p in setup.prompts) + params.max_tokens
    engine = make_engine(setup.folder, 3, kv_cache_tokens=longest + 12, disable_radix_cache=setup.naive)
    traces = run(engine, work)
    retracted = [t for t in traces.values() if t.last is not None and t.last.retractions]
    assert retracted
    assert any(s.drafts for t in retracted for s in t.steps)
    for trace in traces.values():
        setup.check(trace)
