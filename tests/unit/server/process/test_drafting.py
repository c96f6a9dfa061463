"""What automatic depth does: how it comes from the engine, and when the log tells it."""

from __future__ import annotations

import logging

import pytest

from nextn.scheduler.stats import DraftingState, EngineStats
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.drafting import CHANGED, STAYED, DraftingLog, line
from nextn.server.process.messages import StepNews, decode_from_engine, encode

ON = DraftingState(True, 4, 1.309, "")
OFF = DraftingState(False, 16, 0.94, "a draft costs more than it brings")


def test_words() -> None:
    assert line(ON) == "auto: drafting at 4 requests; drafts make 1.31 x"
    assert line(OFF) == (
        "auto: not drafting at 16 requests; drafts would make 0.94 x (a draft costs more than it brings)"
    )
    assert line(DraftingState(False, 1, 0.5, "")).startswith("auto: not drafting at 1 request; ")


@pytest.mark.parametrize("auto", [None, ON, OFF])
def test_it_comes_from_the_engine(auto: DraftingState | None) -> None:
    news = decode_from_engine(encode(StepNews([], EngineStats(auto=auto), 0.1)))
    assert isinstance(news, StepNews)
    assert news.stats.auto == auto


@pytest.fixture(autouse=True)
def decode_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nextn.decode")


def test_a_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(40)
    for auto in (ON, ON, OFF, OFF, OFF):
        metrics.on_step(EngineStats(auto=auto), CHANGED)
    assert caplog.messages == [line(ON), line(OFF)]


def test_changes_to_and_fro_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    log = DraftingLog(True)
    for auto in (ON, OFF, ON, OFF, ON):
        log.update(auto, CHANGED / 10)
    assert caplog.messages == [line(ON)]
    log.update(OFF, CHANGED)
    assert caplog.messages == [line(ON), line(OFF)]


def test_what_stays_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Time without load does not count, nor does a state of no requests."""
    log = DraftingLog(True)
    for _ in range(100):
        log.update(OFF, STAYED / 40)
    assert len(caplog.messages) == 3
    log.update(DraftingState(False, 0, 0.94, ""), 10 * STAYED)
    assert len(caplog.messages) == 3


def test_a_new_engine_is_told_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(40)
    for _ in range(2):
        metrics.on_step(EngineStats(auto=OFF), 0.1)
    metrics.engine_gone()
    metrics.on_step(EngineStats(auto=OFF), 0.1)
    assert caplog.messages == [line(OFF)] * 2


def test_silence(caplog: pytest.LogCaptureFixture) -> None:
    """The depth is fixed; no log lines are wanted (--decode-log-interval 0)."""
    Metrics(40).on_step(EngineStats(), 100.0)
    Metrics(0).on_step(EngineStats(auto=OFF), 100.0)
    assert caplog.messages == []
