"""Intervals are cut right; what automatic depth does comes from the engine, and the log tells it."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from support.engine_stats import stats

from nextn.drafting_state import DraftingState, drafting_words
from nextn.server.process.engine_metrics import (
    CHANGED,
    STAYED,
    DecodeInterval,
    DraftingLog,
    EngineMetrics,
)
from nextn.server.process.messages import StepOutputs, decode_from_engine, encode
from nextn.stats import EngineStats, SpecStats, TransferStats

ON = DraftingState(True, 4, 1.309, "it pays")
OFF = DraftingState(False, 16, 0.94, "", 3.2)


def grown(before: EngineStats, steps: int, accepted: int, running: int = 1) -> EngineStats:
    after = stats(before.decode_steps, 0, running)
    after.spec = SpecStats()
    after.spec.merge(before.spec)
    for _ in range(steps):
        after.spec.add(2, accepted, accepted + 1)
    after.decode_steps += steps
    after.generated_tokens = after.spec.committed
    return after


def test_difference() -> None:
    early, late = stats(3, 1).spec, grown(stats(3, 1), 2, 2).spec
    assert late.since(early) == stats(2, 2).spec
    assert late.since(SpecStats()) == late
    assert late.since(late) == SpecStats(0, [0, 0], [0, 0], 0, [0, 0, 0])


def test_interval_is_the_last_one_not_the_lifetime(caplog: pytest.LogCaptureFixture) -> None:
    interval = DecodeInterval(4)
    first = stats(4, 0)
    with caplog.at_level(logging.INFO, "nextn.decode"):
        interval.update(first, 2.0)
        assert (interval.spec.accept_length, interval.throughput) == (1.0, 2.0)
        interval.update(grown(first, 2, 2), 0.5)
        assert interval.spec.accept_length == 1.0  # not over yet
        interval.update(grown(first, 4, 2), 0.5)
    assert (interval.spec.accept_length, interval.throughput) == (3.0, 12.0)
    assert interval.spec.accept_rate == 1.0
    assert caplog.messages[1] == (
        "Decode batch, #running-req: 1, #token: 32, token usage: 0.50, accept len: 3.00, "
        "accept rate: [1.00, 1.00], gen throughput (token/s): 12.0, #queue-req: 0"
    )


def test_an_idle_engine_shows_the_interval_so_far() -> None:
    interval = DecodeInterval(40)
    interval.update(stats(3, 1), 1.0)
    assert interval.spec.accept_length == 0.0
    interval.update(stats(3, 1, running=0), 0.0)
    assert interval.spec.accept_length == 2.0


def test_no_log_lines_when_none_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    interval = DecodeInterval(0)
    with caplog.at_level(logging.INFO, "nextn.decode"):
        interval.update(stats(40, 1), 1.0)
    assert interval.spec.accept_length == 2.0
    assert caplog.messages == []


def test_words() -> None:
    assert drafting_words(ON) == "drafting at 4 requests; drafts make 1.31 x the tokens/s (it pays)"
    assert drafting_words(OFF) == (
        "not drafting at 16 requests; last tried 3 s ago; drafts would make 0.94 x the tokens/s"
    )


@pytest.mark.parametrize("auto", [None, ON, OFF])
def test_it_comes_from_the_engine(auto: DraftingState | None) -> None:
    message = decode_from_engine(encode(StepOutputs([], EngineStats(auto=auto), 0.1)))
    assert isinstance(message, StepOutputs)
    assert message.stats.auto == auto


@pytest.fixture(autouse=True)
def decode_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nextn.decode")


def test_a_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = EngineMetrics(40)
    for auto in (ON, ON, OFF, OFF, OFF):
        metrics.on_step(EngineStats(auto=auto), CHANGED)
    assert caplog.messages == [f"auto: {drafting_words(ON)}", f"auto: {drafting_words(OFF)}"]


def test_changes_to_and_fro_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    log = DraftingLog(True)
    for auto in (ON, OFF, ON, OFF, ON):
        log.update(auto, CHANGED / 10)
    assert caplog.messages == [f"auto: {drafting_words(ON)}"]
    log.update(OFF, CHANGED)
    assert caplog.messages == [f"auto: {drafting_words(ON)}", f"auto: {drafting_words(OFF)}"]


def test_what_stays_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Time without load does not count, nor does a state of no requests."""
    log = DraftingLog(True)
    for _ in range(100):
        log.update(OFF, STAYED / 40)
    assert len(caplog.messages) == 3
    log.update(DraftingState(False, 0, 0.94, ""), 10 * STAYED)
    assert len(caplog.messages) == 3


def test_a_new_engine_is_told_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = EngineMetrics(40)
    for _ in range(2):
        metrics.on_step(EngineStats(auto=OFF), 0.1)
    metrics.engine_gone()
    metrics.on_step(EngineStats(auto=OFF), 0.1)
    assert caplog.messages == [f"auto: {drafting_words(OFF)}"] * 2


def test_silence(caplog: pytest.LogCaptureFixture) -> None:
    """The depth is fixed; no log lines are wanted (--decode-log-interval 0)."""
    EngineMetrics(40).on_step(EngineStats(), 100.0)
    EngineMetrics(0).on_step(EngineStats(auto=OFF), 100.0)
    assert caplog.messages == []


def test_transfers_go_on_over_a_restart() -> None:
    metrics = EngineMetrics()
    assert metrics.totals().transfer is None
    one = TransferStats(active=2, finished=3, failed=1, fallbacks=1, pages=9, bytes=99, seconds=0.5)
    metrics.on_step(EngineStats(transfer=one), 0.1)
    assert metrics.totals().transfer == one
    metrics.engine_gone()
    assert metrics.totals().transfer == dataclasses.replace(one, active=0)
    metrics.on_step(EngineStats(transfer=TransferStats(active=1, finished=1, pages=1)), 0.1)
    assert metrics.totals().transfer == TransferStats(1, 4, 1, 1, 10, 99, 0.5)
    metrics.engine_gone()
    assert metrics.totals().transfer == TransferStats(0, 4, 1, 1, 10, 99, 0.5)
    message = StepOutputs([], EngineStats(transfer=one), 0.1)
    assert decode_from_engine(encode(message)) == message
