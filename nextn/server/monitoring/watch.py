"""What becomes of each choice, for those who look on: figures, the request log and traces."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nextn.request import Output
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.request_log import RequestLog
from nextn.server.monitoring.tracing import Tracing
from nextn.server.protocol.errors import SHUTTING_DOWN, ApiError

if TYPE_CHECKING:
    from nextn.server.answers.generation import Choice, Generation


class Watch:
    """`Generation` tells it of each choice: `begun`, `news` for each output, and at last one of `finished`
    and `given_up`."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.log: RequestLog | None = None
        self.tracing: Tracing | None = None

    def begun(self, generation: Generation) -> None:
        self.metrics.requests += len(generation.choices)
        if self.log is not None:
            self.log.begun(generation)

    def news(self, choice: Choice, out: Output, arrival: float) -> None:
        """Before the choice has taken it over."""
        now = time.perf_counter()
        if choice.last_news == arrival:
            choice.first_news, choice.queued = now, out.queued
            self.metrics.ttft.observe(now - arrival)
            self.metrics.queue_time.observe(out.queued)
        else:
            for _ in out.tokens:
                self.metrics.itl.observe((now - choice.last_news) / len(out.tokens))
        choice.last_news = now

    def finished(self, choice: Choice, arrival: float) -> None:
        assert choice.finish_reason is not None
        metrics = self.metrics
        metrics.finished[choice.finish_reason] = metrics.finished.get(choice.finish_reason, 0) + 1
        metrics.e2e.observe(choice.last_news - arrival)
        metrics.prompt_length.observe(choice.prompt_tokens)
        metrics.output_length.observe(choice.completion_tokens)
        if choice.completion_tokens > 1:
            metrics.tpot.observe((choice.last_news - choice.first_news) / (choice.completion_tokens - 1))
        if self.log is not None:
            self.log.finished(choice, arrival)
        if self.tracing is not None:
            self.tracing.ended(choice, arrival)

    def given_up(self, choice: Choice, arrival: float, running: bool, error: ApiError | None) -> None:
        """running: the engine was still at it, and has been told to stop. error: what its client is told;
        None: it went away."""
        if running or error is None or error.code == SHUTTING_DOWN:
            self.metrics.aborted += 1
        else:
            self.metrics.failed += 1
        if self.log is not None:
            self.log.given_up(choice, arrival, error)
        if self.tracing is not None:
            self.tracing.ended(choice, arrival, error)
