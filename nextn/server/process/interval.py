"""Figures over the last interval of decode steps, and the decode log line."""

from __future__ import annotations

import logging

from nextn.request import SpecStats
from nextn.scheduler.stats import EngineStats

log = logging.getLogger("nextn.decode")

DEFAULT_STEPS = 40  # the interval when no log lines are asked for


class DecodeInterval:
    """Cuts an engine's life into intervals of `log_steps` decode steps; at the end of each it logs a line.

    The figures are those of the last whole interval; until there is one, or when the engine falls idle in
    the middle, those of the interval so far. Time counts only while the engine is busy.
    """

    def __init__(self, log_steps: int) -> None:
        self._steps = log_steps or DEFAULT_STEPS
        self._logs = log_steps > 0
        self.throughput = 0.0  # generated tokens / second
        self.spec = SpecStats()
        self.restart()

    def restart(self) -> None:
        """A new engine counts from zero."""
        self._begin(EngineStats())

    def _begin(self, stats: EngineStats) -> None:
        self._decode_steps = stats.decode_steps
        self._generated = stats.generated_tokens
        self._spec = stats.spec.since(SpecStats())
        self._seconds = 0.0

    def update(self, stats: EngineStats, seconds: float) -> None:
        self._seconds += seconds
        steps = stats.decode_steps - self._decode_steps
        if steps >= self._steps:
            self._measure(stats)
            if self._logs:
                log.info(self.line(stats))
            self._begin(stats)
        elif steps and stats.running + stats.waiting == 0:
            self._measure(stats)

    def _measure(self, stats: EngineStats) -> None:
        self.spec = stats.spec.since(self._spec)
        self.throughput = (stats.generated_tokens - self._generated) / max(self._seconds, 1e-9)

    @property
    def accept_rate(self) -> float:
        """Drafts accepted / drafts proposed, all depths together."""
        return sum(self.spec.accepted) / max(sum(self.spec.proposed), 1)

    def line(self, stats: EngineStats) -> str:
        rates = ", ".join(f"{rate:.2f}" for rate in self.spec.accept_rates)
        usage = stats.used_tokens / max(stats.total_tokens, 1)
        return (
            f"Decode batch, #running-req: {stats.running}, #token: {stats.used_tokens}, "
            f"token usage: {usage:.2f}, accept len: {self.spec.accept_length:.2f}, accept rate: [{rates}], "
            f"gen throughput (token/s): {self.throughput:.1f}, #queue-req: {stats.waiting}"
        )
