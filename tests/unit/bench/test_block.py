"""The result block and the JSONL record, pinned: log parsers of bench_serving read them."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from nextn.bench.acceptance import Acceptance
from nextn.bench.block import result_block
from nextn.bench.client import Load, Reply
from nextn.bench.datasets import Options
from nextn.bench.errors import RequestError
from nextn.bench.load_plot import load_plot
from nextn.bench.measure import calculate_metrics
from nextn.bench.outcome import Outcome

BLOCK = """\
============ Serving Benchmark Result ============
Backend:                                 nextn     |
Traffic request rate:                    inf       |
Max request concurrency:                 4         |
Successful requests:                     2         |
Benchmark duration (s):                  2.00      |
Total input tokens:                      16        |
Total generated tokens:                  8         |
Total generated tokens (retokenized):    7         |
Request throughput (req/s):              1.00      |
Input token throughput (tok/s):          8.00      |
Output token throughput (tok/s):         4.00      |
Total token throughput (tok/s):          12.00     |
Concurrency:                             1.75      |
Accept length:                           2.41      |
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   1750.00   |
Median E2E Latency (ms):                 1750.00   |
P90 E2E Latency (ms):                    1950.00   |
P99 E2E Latency (ms):                    1995.00   |
---------------Time to First Token----------------
Mean TTFT (ms):                          750.00    |
Median TTFT (ms):                        750.00    |
P99 TTFT (ms):                           995.00    |
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          375.00    |
Median TPOT (ms):                        375.00    |
P99 TPOT (ms):                           497.50    |
---------------Inter-Token Latency----------------
Mean ITL (ms):                           666.67    |
Median ITL (ms):                         600.00    |
P95 ITL (ms):                            960.00    |
P99 ITL (ms):                            992.00    |
Max ITL (ms):                            1000.00   |
-------------------Speculation--------------------
Accept length is of:                     this run  |
Acceptance at position 1:                0.81      |
Acceptance at position 2:                0.57      |
---------------------Goodput----------------------
Request goodput (req/s):                 0.50      |
---------------------Failures---------------------
Failed requests:                         3         |
  HTTP 503:                              2         |
  ReadTimeout:                           1         |
==================================================""".replace("|", "")


@pytest.fixture
def outcome() -> Outcome:
    failed = [RequestError("HTTP 503", "full"), RequestError("ReadTimeout", "silent")]
    replies = [
        Reply("abcde", 7, 5, sent=10.0, arrivals=(10.5, 10.9, 11.5)),
        Reply("abc", 9, 3, sent=10.0, arrivals=(11.0, 12.0)),
    ]
    load = Load([failed[0], replies[0], failed[1], replies[1], failed[0]], 2.0)
    acceptance = Acceptance(2.41, [0.81, 0.57], "nextn")
    return Outcome(
        "nextn", "nextn-tiny", Options(), math.inf, 4, load, calculate_metrics(load), 7, acceptance,
        goodput=0.5,
    )  # fmt: skip


def test_block(outcome: Outcome) -> None:
    assert result_block(outcome) == BLOCK


def test_lines_that_need_not_be_there(outcome: Outcome) -> None:
    """A server without speculation, without a tokenizer, without failures."""
    load = Load(outcome.load.replies, 2.0)
    plain = dataclasses.replace(
        outcome, load=load, acceptance=None, retokenized=None, goodput=None, request_rate=2.5,
        max_concurrency=None,
    )  # fmt: skip
    block = result_block(plain)
    for gone in ("Accept", "retokenized", "goodput", "Speculation", "Failed"):
        assert gone not in block
    assert "Traffic request rate:                    2.50      \n" in block
    assert "Max request concurrency:                 not set   \n" in block


def test_lifetime_is_marked(outcome: Outcome) -> None:
    lifetime = dataclasses.replace(outcome, acceptance=Acceptance(1.9, [], "sglang", lifetime=True))
    block = result_block(lifetime)
    assert "Accept length:                           1.90      \n" in block
    assert "Accept length is of:                     server's lifetime\n" in block
    assert lifetime.record()["accept_length_of"] == "lifetime"


def test_acceptance_by_lot_is_marked(outcome: Outcome) -> None:
    assert "simulated" not in result_block(outcome)
    assert outcome.record()["simulated"] is False
    by_lot = dataclasses.replace(outcome, acceptance=Acceptance(1.9, [0.9], "nextn", simulated=True))
    assert "Acceptance is:                           simulated \n" in result_block(by_lot)
    assert by_lot.record()["simulated"] is True


LATENCY_KEYS = [
    f"{kind}_{name}_ms"
    for name in ("e2e_latency", "ttft", "tpot", "itl")
    for kind in ("mean", "median", "std", "p90", "p95", "p99")
]
KEYS = """
backend dataset_name request_rate max_concurrency sharegpt_output_len random_input_len random_output_len
random_range_ratio duration completed total_input_tokens total_output_tokens total_output_tokens_retokenized
request_throughput input_throughput output_throughput total_throughput
"""
OUR_KEYS = """
max_itl_ms concurrency accept_length accept_rates accept_length_of accept_length_source simulated failed
errors_by_kind goodput model num_prompts seed
"""


def test_record(outcome: Outcome) -> None:
    record = outcome.record()
    assert list(record) == [*KEYS.split(), *LATENCY_KEYS, *OUR_KEYS.split()]
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again == record
    assert (record["request_rate"], record["completed"], record["failed"]) == ("inf", 2, 3)
    assert record["errors_by_kind"] == {"HTTP 503": 2, "ReadTimeout": 1}
    assert (record["accept_length"], record["accept_length_of"]) == (2.41, "run")
    assert record["p95_itl_ms"] == pytest.approx(960)


def test_details_are_in_the_order_of_the_requests(outcome: Outcome) -> None:
    details = outcome.details()
    assert details["input_lens"] == [0, 7, 0, 9, 0]
    assert details["output_lens"] == [0, 5, 0, 3, 0]
    assert details["ttfts"] == [0.0, 0.5, 0.0, 1.0, 0.0]
    assert details["itls"][1] == pytest.approx([0.4, 0.6])
    assert details["generated_texts"] == ["", "abcde", "", "abc", ""]
    assert details["errors"] == ["full", "", "silent", "", "full"]


def test_plot(outcome: Outcome) -> None:
    assert load_plot("a load", outcome.load).startswith(b"\x89PNG\r\n\x1a\n")
    assert load_plot("nothing succeeded", Load([], 1.0)).startswith(b"\x89PNG\r\n\x1a\n")
