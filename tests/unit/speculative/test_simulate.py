from __future__ import annotations

import pytest

from nextn.draft import Draft
from nextn.llm import LLM
from nextn.request import SamplingParams, SpeculativeParams
from nextn.speculative.simulate import simulated_path


def mean(draft: Draft, length: float) -> float:
    paths = [simulated_path(draft, length, SamplingParams(seed=s), i) for s in range(8) for i in range(500)]
    return 1 + sum(map(len, paths)) / len(paths)


@pytest.mark.parametrize("length", [1.0, 1.3, 2.5, 4.0])
def test_mean(length: float) -> None:
    assert mean(Draft([1, 2, 3]), length) == pytest.approx(length, abs=0.03)
    assert mean(Draft([1, 2, 3, 4], [-1, -1, 1, 2]), length) <= length + 0.03


def test_a_short_draft_gives_what_it_has() -> None:
    assert mean(Draft([1]), 3.7) == 2.0
    assert mean(Draft(), 3.7) == 1.0


def test_paths_and_seeds() -> None:
    tree = Draft([1, 2, 3, 4], [-1, -1, 0, 2])
    assert simulated_path(tree, 4.0, SamplingParams(), 5) == [0, 2, 3]
    chain = Draft([1, 2])
    both = [[simulated_path(chain, 1.5, SamplingParams(seed=s), i) for i in range(40)] for s in (1, 1, 2)]
    assert both[0] == both[1] != both[2]


def test_through_the_engine() -> None:
    """Known acceptance on a model whose own would be another; the same seeds, the same text."""
    params = SamplingParams(max_tokens=200, temperature=1.0, seed=4, ignore_eos=True)
    made = []
    for _ in range(2):
        llm = LLM(speculative_num_steps=3, speculative_simulate_accept_length=2.6, threads=1)
        assert llm.engine.startup["simulated_accept_length"] == 2.6
        made.append(llm.generate("import os\n", params)[0])
    assert made[0].token_ids == made[1].token_ids
    assert made[0].spec.accept_length == pytest.approx(2.6, abs=0.25)
    assert made[0].spec.simulated
    assert llm.engine.stats().spec.simulated
    undrafted = params.replace(max_tokens=2, speculative=SpeculativeParams(num_steps=0))
    assert not llm.generate("import os\n", undrafted)[0].spec.simulated
    plain = LLM(speculative_num_steps=0, threads=1).generate("import os\n", params)[0]
    assert plain.token_ids != made[0].token_ids
