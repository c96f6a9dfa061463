"""Metrics of the engine's steps: totals, the last interval of decode steps, and the decode log. The log has a
line for each interval, and lines about automatic depth."""

from __future__ import annotations

import dataclasses
import logging
import math

from nextn.drafting_state import DraftingState, drafting_words
from nextn.stats import EngineStats, SpecStats, TransferStats
from nextn.waits import Phase

log = logging.getLogger("nextn.decode")

DEFAULT_STEPS = 40  # decode steps per interval, if there are no log lines
# Minimum seconds of load between two lines about drafts: after a change, and without a change.
CHANGED, STAYED = 5.0, 30.0

TOTALS = ("prompt_tokens", "cached_tokens", "generated_tokens", "retracted", "sent")
TRANSFER_TOTALS = ("finished", "failed", "fallbacks", "pages", "bytes", "seconds")


class EngineMetrics:
    """The metrics of one engine client. stats: from the engine's last message, all zero without an engine.
    Totals continue after a restart of the engine. log_steps: decode steps between two log lines; 0: no
    lines."""

    def __init__(self, log_steps: int = 0) -> None:
        self.stats = EngineStats()
        self.interval = DecodeInterval(log_steps)
        self.drafting_log = DraftingLog(log_steps > 0)
        self.engine_up = False
        self.restarts = 0
        self.busy = 0.0  # seconds in which the engine had work
        self._before = EngineStats()  # totals of engines that have ended

    def on_step(self, stats: EngineStats, seconds: float) -> None:
        self.stats = stats
        self.busy += seconds
        self.interval.update(stats, seconds)
        self.drafting_log.update(stats.auto, seconds)

    def engine_gone(self) -> None:
        """Keeps the totals of an engine that has ended; the next one counts from zero."""
        self.engine_up = False
        self._before = self.totals()
        self.stats = EngineStats()
        self.interval.restart()
        self.drafting_log.restart()

    def totals(self) -> EngineStats:
        """The totals of this engine and of its predecessors."""
        spec = SpecStats()
        spec.merge(self._before.spec)
        spec.merge(self.stats.spec)
        total = EngineStats(spec=spec)
        for name in TOTALS:
            setattr(total, name, getattr(self._before, name) + getattr(self.stats, name))
        total.transfer = summed(self._before.transfer, self.stats.transfer)
        for phases in (self._before.phases, self.stats.phases):
            for name, phase in phases.items():
                total.phases[name] = total.phases.get(name, Phase()).plus(phase)
        return total


def summed(before: TransferStats | None, now: TransferStats | None) -> TransferStats | None:
    """The sum over ended engines and the current one. `active` is the current engine's alone."""
    if before is None or now is None:
        return now if before is None else dataclasses.replace(before, active=0)
    total = TransferStats(active=now.active)
    for name in TRANSFER_TOTALS:
        setattr(total, name, getattr(before, name) + getattr(now, name))
    return total


class DecodeInterval:
    """Metrics over intervals of `log_steps` decode steps, with a log line at the end of each interval.

    The metrics are those of the last complete interval. If the engine becomes idle during an interval, they
    are those of the unfinished interval. Time counts only while the engine is busy."""

    def __init__(self, log_steps: int) -> None:
        self._steps = log_steps or DEFAULT_STEPS
        self._logs = log_steps > 0
        self.throughput = 0.0  # generated tokens / second
        self.spec = SpecStats()
        self.restart()

    def restart(self) -> None:
        """Begins an interval at zero, for a new engine."""
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
        """Drafts accepted / drafts proposed, over all depths."""
        return sum(self.spec.accepted) / max(sum(self.spec.proposed), 1)

    def line(self, stats: EngineStats) -> str:
        rates = ", ".join(f"{rate:.2f}" for rate in self.spec.accept_rates)
        usage = stats.used_tokens / max(stats.total_tokens, 1)
        return (
            f"Decode batch, #running-req: {stats.running}, #token: {stats.used_tokens}, "
            f"token usage: {usage:.2f}, accept len: {self.spec.accept_length:.2f}, accept rate: [{rates}], "
            f"gen throughput (token/s): {self.throughput:.1f}, #queue-req: {stats.waiting}"
        )


class DraftingLog:
    """Log lines about automatic depth. A change that is reversed within `CHANGED` seconds of the last line is
    not logged."""

    def __init__(self, logs: bool) -> None:
        self._logs = logs
        self.restart()

    def restart(self) -> None:
        """Makes the next state count as new, so that a new engine's first state is logged at once."""
        self._logged: bool | None = None
        self._seconds = math.inf  # seconds of load since the last line

    def update(self, auto: DraftingState | None, seconds: float) -> None:
        """Called after a step. seconds: how long the engine was busy with it."""
        if auto is None or not self._logs:
            return
        self._seconds += seconds
        if auto.requests and self._seconds >= (STAYED if auto.drafting is self._logged else CHANGED):
            log.info(f"auto: {drafting_words(auto)}")
            self._logged, self._seconds = auto.drafting, 0.0
