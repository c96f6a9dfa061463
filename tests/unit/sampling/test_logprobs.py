"""Log-probabilities of rows of logits."""

import math
import random

import pytest
import torch

from nextn.sampling.logprobs import LogprobRequest, token_logprobs


def test_they_are_the_log_softmax_of_raw_logits():
    logits = torch.randn(5, 40)
    requests = [
        LogprobRequest(3, 7, 2),
        LogprobRequest(0, 1, 0),
        LogprobRequest(4, 2, 40),
        LogprobRequest(4, 5, 99),
    ]
    expected = logits.double().log_softmax(-1)
    for ask, (own, top) in zip(requests, token_logprobs(logits, requests), strict=True):
        row = expected[ask.row]
        assert own == pytest.approx(row[ask.token].item(), abs=1e-5)
        assert [i for i, _ in top] == row.argsort(descending=True)[: ask.top].tolist()
        assert [p for _, p in top] == pytest.approx([row[i].item() for i, _ in top], abs=1e-5)
    everything = token_logprobs(logits, [LogprobRequest(i, 0, 40) for i in range(5)])
    assert [sum(math.exp(p) for _, p in top) for _, top in everything] == pytest.approx([1.0] * 5, abs=1e-5)


def test_a_row_is_told_the_same_in_any_company():
    """To the bit, however many rows and questions there are, and among equal logits."""
    logits = torch.randn(150, 1000).round(decimals=1)
    alone = [token_logprobs(logits[i : i + 1].clone(), [LogprobRequest(0, i, i % 5)])[0] for i in range(150)]
    order = random.Random(1).sample(range(150), 150)
    together = token_logprobs(logits, [LogprobRequest(i, i, i % 5) for i in order])
    assert together == [alone[i] for i in order]
    for _, top in together:
        assert top == sorted(top, key=lambda pair: (-pair[1], pair[0]))
