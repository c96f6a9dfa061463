"""--cpu-isa: at every level of the native kernels that this machine runs, the embedded model's text is the
same with and without drafts; engines of several levels live in one process."""

from __future__ import annotations

from functools import cache

import pytest
from support.native_kernels import built_levels

from nextn.bench.prompts import heldout_prompts
from nextn.config import CPU_LEVELS
from nextn.llm import LLM
from nextn.request import SamplingParams

PARAMS = [
    SamplingParams(max_tokens=16, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=1.0, seed=5, ignore_eos=True),
]


def texts(llm: LLM) -> list[list[int]]:
    """Greedy ones and sampled ones."""
    prompts = [llm.tokenizer.encode(text)[:80] for text in heldout_prompts(3)]
    return [c.token_ids for p in PARAMS for c in llm.generate(prompts, [p] * 3)]


def engine(level: str, drafts: int | str) -> LLM:
    return LLM(cpu_isa=level, threads=1, speculative_num_steps=drafts, kv_cache_tokens=2048)


@cache
def without_drafts(level: str) -> list[list[int]]:
    llm = engine(level, 0)
    assert llm.engine.startup["cpu_isa"] == level
    return texts(llm)


@pytest.mark.parametrize("level", CPU_LEVELS)
def test_text_is_the_same_with_drafts(level: str) -> None:
    if level not in built_levels():
        with pytest.raises(ValueError, match=f"--cpu-isa {level}: .* this machine can run portable"):
            engine(level, 0)
        return
    want = without_drafts(level)
    for drafts in (3, "auto") if level == built_levels()[-1] else (3,):
        llm = engine(level, drafts)
        assert texts(llm) == want
        # How many drafts automatic depth makes is a matter of speed.
        assert drafts == "auto" or llm.engine.stats().spec.accepted[0] > 0


def test_levels_side_by_side() -> None:
    """Each engine keeps its own kernels, whichever engine was made or ran last."""
    levels = built_levels()
    engines = {level: engine(level, 2) for level in (levels[0], levels[-1])}
    first = {level: texts(llm) for level, llm in engines.items()}
    assert {level: texts(llm) for level, llm in reversed(engines.items())} == first
    assert {level: without_drafts(level) for level in engines} == first
    assert {llm.engine.startup["cpu_isa"] for llm in engines.values()} == set(engines)
