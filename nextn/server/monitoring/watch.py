"""Records the events of each choice in metrics, in the request log and as traces."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.server.answers.choice import Choice, Observer
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.request_log import RequestLog
from nextn.server.monitoring.tracing import Tracing
from nextn.server.protocol.errors import SHUTTING_DOWN, ApiError


class Watch(Observer):
    """The observer of the server's choices."""

    def __init__(self, metrics: Metrics, log: RequestLog, tracing: Tracing | None = None) -> None:
        self.metrics, self.log, self.tracing = metrics, log, tracing

    def begun(self, choices: Sequence[Choice], n: int) -> None:
        self.metrics.requests += len(choices)
        self.log.begun(choices[::n])

    def first(self, choice: Choice, arrival: float) -> None:
        self.metrics.ttft.observe(choice.first_output - arrival)
        self.metrics.queue_time.observe(choice.queued)

    def more(self, tokens: int, seconds: float) -> None:
        if tokens:
            self.metrics.itl.observe(seconds / tokens, tokens)

    def finished(self, choice: Choice, arrival: float) -> None:
        assert choice.finish_reason is not None
        metrics = self.metrics
        metrics.finished[choice.finish_reason] = metrics.finished.get(choice.finish_reason, 0) + 1
        metrics.e2e.observe(choice.last_output - arrival)
        metrics.prompt_length.observe(choice.prompt_tokens)
        metrics.output_length.observe(choice.completion_tokens)
        if choice.completion_tokens > 1:
            metrics.tpot.observe((choice.last_output - choice.first_output) / (choice.completion_tokens - 1))
        self.log.finished(choice, arrival)
        if self.tracing is not None:
            self.tracing.ended(choice, arrival)

    def ended_early(self, choice: Choice, arrival: float, running: bool, error: ApiError | None) -> None:
        if running or error is None or error.code == SHUTTING_DOWN:
            self.metrics.aborted += 1
        else:
            self.metrics.failed += 1
        self.log.ended_early(choice, arrival, error)
        if self.tracing is not None:
            self.tracing.ended(choice, arrival, error)
