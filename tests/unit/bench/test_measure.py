"""Latency and throughput, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.bench.client import Load, Reply
from nextn.bench.errors import RequestError
from nextn.bench.goodput import goodput, parse_slos
from nextn.bench.measure import Spread, calculate_metrics

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
    found = calculate_metrics(Load([single, REPLY], 4.0))
    assert found.tpot_ms.mean == pytest.approx(250)
    assert calculate_metrics(Load([single], 1.0)).tpot_ms == Spread(*[0.0] * 7)


def test_figures() -> None:
    slower = Reply("abc", 9, 3, sent=10.0, arrivals=(11.0, 12.0))
    found = calculate_metrics(Load([REPLY, slower], 2.0))
    assert (found.requests, found.input_tokens, found.output_tokens) == (2, 16, 8)
    assert found.output_throughput == pytest.approx(4.0)
    assert found.ttft_ms.mean == pytest.approx(750)
    assert found.tpot_ms.mean == pytest.approx((250 + 500) / 2)
    assert found.itl_ms.mean == pytest.approx((400 + 600 + 1000) / 3)
    assert found.itl_ms.median == pytest.approx(600)


def test_spread() -> None:
    spread = Spread.of([i / 1000 for i in range(101)])
    assert (spread.mean, spread.median, spread.p90, spread.p95, spread.p99, spread.max) == pytest.approx(
        (50, 50, 90, 95, 99, 100)
    )
    assert spread.std == pytest.approx(850**0.5)  # of 0 .. n - 1: sqrt((n² - 1) / 12), all of them counted
    assert Spread.of([0.002, 0.004, 0.009]).p90 == pytest.approx(8.0)  # 4 + (9 - 4) * 0.8
    assert Spread.of([]) == Spread(*[0.0] * 7)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=50))
def test_spread_is_numpy_s(seconds: list[float]) -> None:
    ms = np.array(seconds) * 1000
    spread = Spread.of(seconds)
    assert (spread.mean, spread.median, spread.std) == pytest.approx((ms.mean(), np.median(ms), ms.std()))
    assert (spread.p90, spread.p95, spread.p99) == pytest.approx(tuple(np.percentile(ms, [90, 95, 99])))
    assert spread.max == pytest.approx(ms.max())


def test_throughputs_and_concurrency() -> None:
    slower = Reply("abc", 9, 3, sent=10.0, arrivals=(11.0, 12.0))
    found = calculate_metrics(Load([REPLY, RequestError("HTTP 503", "full"), slower], 2.0))
    assert (found.requests, found.request_throughput) == (2, 1.0)
    assert (found.input_throughput, found.output_throughput, found.total_throughput) == (8.0, 4.0, 12.0)
    assert found.concurrency == pytest.approx((1.5 + 2.0) / 2.0)
    assert found.e2e_ms.mean == pytest.approx(1750)


def test_nothing_succeeded() -> None:
    found = calculate_metrics(Load([RequestError("HTTP 503", "full")], 2.0))
    assert (found.requests, found.output_throughput, found.e2e_ms.p99) == (0, 0.0, 0.0)


def test_gaps_are_shared_where_the_tokens_are_known() -> None:
    # Chunks of 1, 3 and 1 tokens, and one that only says that it is over.
    reply = Reply("abcde", 7, 5, 10.0, (10.5, 10.8, 11.4, 11.5), (1, 4, 5, 5))
    assert reply.gaps == pytest.approx([0.1, 0.1, 0.1, 0.6])


def test_goodput() -> None:
    fast = Reply("abcde", 7, 5, 10.0, (10.1, 10.5))  # TTFT 100 ms, TPOT 100 ms, E2E 500 ms
    load = Load([REPLY, fast, RequestError("HTTP 503", "full")], 2.0)
    for slos, good in (
        (["ttft:200"], 1), (["ttft:600"], 2), (["ttft:50"], 0), (["tpot:150"], 1), (["e2el:400"], 0),
        (["ttft:600", "e2el:1000"], 1), (["ttft:500"], 2), (["ttft:499.9"], 1), (["tpot:250"], 2),
    ):  # fmt: skip
        assert goodput(load, parse_slos(slos)) == pytest.approx(good / 2.0)
    # One token has no time per further token that could be too long.
    assert goodput(Load([Reply("a", 7, 1, 10.0, (10.25,))], 1.0), {"tpot": 1.0}) == 1.0


@pytest.mark.parametrize("slo", ["ttft", "itl:3", "ttft:fast", "ttft:0", "ttft:-1", "tpot:nan"])
def test_wrong_slos(slo: str) -> None:
    with pytest.raises(ValueError, match="--goodput"):
        parse_slos([slo])
