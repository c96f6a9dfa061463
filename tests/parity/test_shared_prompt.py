"""Choices that share their prompt on the embedded model: texts, log-probabilities and acceptance are those of
choices that compute it each for itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.request import PromptGroup, Request, SamplingParams
from nextn.tokenizer.tokenizer import Tokenizer

CHOICES = 4
STEPS_BEFORE_ABORT = 2


def run(engine: Engine, group: PromptGroup | None, abort: bool, **params: Any) -> dict[str, Any]:
    """rid -> (tokens, their log-probabilities, the prompt's, what speculation did)."""
    prompt = Tokenizer.from_folder(model_folder(EMBEDDED)).encode(heldout_prompts(1)[0])
    for i in range(CHOICES):
        own = SamplingParams(**{"seed": 5, "stream": i, "ignore_eos": True, "prompt_logprobs": 3, **params})
        engine.add(Request(str(i), list(prompt), own, group=group))
    found: dict[str, Any] = {str(i): ([], [], []) for i in range(CHOICES)}
    steps = 0
    while engine.has_work():
        if abort and steps == STEPS_BEFORE_ABORT:
            assert engine.abort("0")
            del found["0"]
        steps += 1
        for out in engine.step():
            tokens, logprobs, prompts = found[out.rid]
            tokens += out.tokens
            logprobs += out.logprobs or []
            prompts += out.prompt_logprobs or []
            if out.finish_reason is not None:
                found[out.rid] += (out.spec,)
    return found


def made(radix: bool) -> Engine:
    return Engine(
        EngineConfig(
            threads=1, kv_cache_tokens=4096, chunked_prefill_size=48, speculative_num_steps=2,
            disable_radix_cache=not radix, check_integrity=True, max_running_requests=8,
        )
    )  # fmt: skip


@cache
def separate(radix: bool, max_tokens: int) -> dict[str, Any]:
    return run(made(radix), None, abort=False, max_tokens=max_tokens, logprobs=2)


@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 16])
@pytest.mark.parametrize("radix", [True, False])
def test_shared_is_as_separate(radix: bool, max_tokens: int, abort: bool) -> None:
    alone = separate(radix, max_tokens)
    engine, group = made(radix), PromptGroup()
    shared = run(engine, group, abort, max_tokens=max_tokens, logprobs=2)
    assert shared == {rid: each for rid, each in alone.items() if rid in shared}
    assert len(shared) == CHOICES - abort
    assert len(alone["1"][0]) == max_tokens
    stats = engine.stats()
    length = len(group.prompt_logprobs) + 1
    if max_tokens == 0 or radix:
        computed = stats.prompt_tokens - stats.cached_tokens
        assert computed <= (1 + abort) * length + CHOICES * 16
