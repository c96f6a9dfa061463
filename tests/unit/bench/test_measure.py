"""Latency and throughput figures, against values worked out by hand."""

from __future__ import annotations

import pytest

from nextn.bench.client import Load, Reply
from nextn.bench.measure import Spread, figures

# Sent at 10 s; chunks of 1, 3 and 1 tokens.
REPLY = Reply("abcde", 7, 5, sent=10.0, arrivals=(10.5, 10.9, 11.5))


def test_reply() -> None:
    assert REPLY.ttft == pytest.approx(0.5)
    assert REPLY.latency == pytest.approx(1.5)
    assert REPLY.tpot == pytest.approx(1.0 / 4)
    assert REPLY.gaps == pytest.approx([0.4, 0.6])


def test_one_token_has_no_time_per_further_token() -> None:
    single = Reply("a", 7, 1, sent=10.0, arrivals=(10.25,))
    assert single.tpot is None
    assert single.gaps == []
    found = figures(Load([single, REPLY], 4.0))
    assert found.tpot_ms.mean == pytest.approx(250)
    assert figures(Load([single], 1.0)).tpot_ms == Spread(0.0, 0.0, 0.0)


def test_figures() -> None:
    slower = Reply("abc", 9, 3, sent=10.0, arrivals=(11.0, 12.0))
    found = figures(Load([REPLY, slower], 2.0))
    assert (found.requests, found.input_tokens, found.output_tokens) == (2, 16, 8)
    assert found.output_throughput == pytest.approx(4.0)
    assert found.ttft_ms.mean == pytest.approx(750)
    assert found.tpot_ms.mean == pytest.approx((250 + 500) / 2)
    assert found.itl_ms.mean == pytest.approx((400 + 600 + 1000) / 3)
    assert found.itl_ms.median == pytest.approx(600)


def test_spread() -> None:
    spread = Spread.of([i / 1000 for i in range(101)])
    assert (spread.mean, spread.median, spread.p99) == pytest.approx((50, 50, 99))
