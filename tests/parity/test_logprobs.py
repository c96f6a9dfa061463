"""Log-probabilities of the embedded model against transformers' logits, the prompt's and the output's."""

from __future__ import annotations

import pytest
import torch
from parity.oracle import load_oracle, oracle_logits

from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, model_folder
from nextn.llm import LLM
from nextn.request import SamplingParams

TOP = 5


def test_logprobs_are_those_of_transformers() -> None:
    llm = LLM(
        threads=1, chunked_prefill_size=64, max_running_requests=4, dtype="float32", kv_cache_tokens=2048
    )  # fmt: skip
    params = SamplingParams(
        max_tokens=8, temperature=1.0, seed=3, top_k=9, repetition_penalty=1.3, ignore_eos=True,
        logprobs=TOP, prompt_logprobs=TOP,
    )  # fmt: skip
    oracle = load_oracle(model_folder(EMBEDDED))
    for done in llm.generate(heldout_prompts(2), params):
        tokens = [*done.prompt_token_ids, *done.token_ids]
        expected = oracle_logits(oracle, tokens).log_softmax(-1)
        assert done.prompt_logprobs is not None
        assert done.logprobs is not None
        first, *shown = [*done.prompt_logprobs, *done.logprobs]
        assert first is None
        assert len(shown) == len(tokens) - 1
        for row, token, logprob in zip(expected, tokens[1:], shown, strict=False):
            assert logprob is not None
            assert logprob.logprob == pytest.approx(row[token].item(), abs=2e-4)
            best, _ = row.topk(TOP)
            assert [p for _, p in logprob.top] == pytest.approx(best.tolist(), abs=2e-4)
            ids = torch.tensor([i for i, _ in logprob.top])
            assert row[ids].tolist() == pytest.approx(best.tolist(), abs=2e-4)


def test_a_stop_string_cuts_them_with_the_tokens() -> None:
    llm = LLM(threads=1)
    params = SamplingParams(max_tokens=40, temperature=0, logprobs=1, ignore_eos=True)
    (prompt,) = heldout_prompts(1)
    (whole,) = llm.generate([prompt], params)
    (cut,) = llm.generate([prompt], params, stop=["\n"])
    assert cut.logprobs is not None
    assert whole.logprobs is not None
    assert 0 < len(cut.token_ids) == len(cut.logprobs) < 40
    assert cut.logprobs == whole.logprobs[: len(cut.logprobs)]
    (silent,) = llm.generate([prompt], params.replace(logprobs=None))
    assert silent.logprobs is silent.prompt_logprobs is None
    assert silent.token_ids == whole.token_ids
