"""Choices of rows whose parameters lie on the device are those of the sampler."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.ops.base import DrawParams
from nextn.ops.best import best_token
from nextn.ops.philox import uniforms
from nextn.request import SamplingParams
from nextn.sampling.row_draws import Choosing, RowDraws, draw_rows
from nextn.sampling.sampler import draw
from nextn.speculative.device.relay import Requests, Start, choosing_of, relay_row

VOCAB = 40
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 9e-6, 1e-5, 0.3, 1.0, 50.0]),
    top_k=st.sampled_from([-1, 0, 1, 5, VOCAB, 10**9]),
    top_p=st.sampled_from([1.0, 0.9, 0.2, 1e-9]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 2**32 - 1),
)


def rows_of(each, positions) -> RowDraws:
    rows = [relay_row(Start(at, 0, ()), 9999, p, (), VOCAB) for p, at in zip(each, positions, strict=True)]
    return Requests(torch.stack([torch.from_numpy(row) for row in rows])).draws


@given(st.lists(params, min_size=1, max_size=40), st.integers(0, 10**5), st.booleans())
def test_tokens_and_confidence_are_the_samplers(each, position, ties):
    positions = [position + 3 * i for i in range(len(each))]
    generator = torch.Generator().manual_seed(position)
    logits = torch.randn(len(each), VOCAB, generator=generator) * 3
    if ties:
        logits = logits.round()
    draws = [
        DrawParams(p.seed, p.stream, at, p.temperature, p.top_p, p.min_p, p.top_k)
        for p, at in zip(each, positions, strict=True)
    ]
    want_confidence: list[float] = []
    want = draw(logits.clone(), draws, want_confidence)
    choosing = max(choosing_of(p, VOCAB) for p in each)
    for more in range(choosing, max(Choosing) + 1):
        got, confidence = draw_rows(
            logits.clone(), rows_of(each, positions), Choosing(more), uniforms, best_token
        )
        assert got.tolist() == want
        assert confidence is not None
        assert confidence.tolist() == want_confidence


@pytest.mark.parametrize("choosing", Choosing)
def test_no_choice(choosing):
    logits = torch.zeros(4, VOCAB)
    logits[0, 3], logits[1, 3], logits[2] = math.nan, math.inf, -math.inf
    temperature = 0.0 if choosing == Choosing.GREEDY else 1.0
    each = [SamplingParams(temperature=temperature, seed=4)] * 4
    got, confidence = draw_rows(logits, rows_of(each, range(4)), choosing, uniforms)
    assert got[:3].tolist() == [-1] * 3
    assert got[3] >= 0
    assert confidence is None
