"""The engine's loop: plan a step, run it, commit its result. No HTTP server, no processes.

With overlap, the next step is planned and launched before the result of the current one is read, so the
executor does not have to wait for the work in between.

engine = Engine(EngineConfig())
engine.add(Request("a", tokens, SamplingParams()))
while engine.has_work():
    for output in engine.step(): ...
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from nextn.config import EngineConfig
from nextn.engine.build import build, make_executor
from nextn.engine.check_prompt import check_prompt
from nextn.engine.executor import Executor, ExecutorInfo, Ticket, Wakes
from nextn.engine.expert_recorder import ExpertRecorder
from nextn.engine.page_transfers import PageTransfers
from nextn.engine.step_phases import StepPhases
from nextn.engine.step_trace import stepped
from nextn.request import Output, Request, SpeculativeParams
from nextn.scheduler.plan import Plan
from nextn.stats import EngineStats
from nextn.trace import TRACE, Laps


class Engine:
    """Raises ValueError (or its subclass CheckpointError) if the configuration or the checkpoint is
    invalid. Not thread-safe: one thread adds, steps and aborts."""

    def __init__(
        self, config: EngineConfig, make_executor: Callable[[EngineConfig], Executor] = make_executor
    ) -> None:
        """make_executor: makes the executor, which runs the steps in this process or in others."""
        config.check()
        built = build(config, make_executor)
        self.config = config
        self.vocab_size, self.eos_token_ids = built.executor.info.vocab_size, built.executor.info.eos_ids
        self.context_length, self.speculation = built.context_length, built.speculation
        self.startup, self._remember = built.startup, built.remember
        self.speculative_defaults = SpeculativeParams()
        self._scheduler, self._executor = built.scheduler, built.executor
        self._simulated = self.speculation.simulated is not None and self.speculation.num_steps > 0
        self._scheduler.stats.spec.simulated = self._simulated
        counts = built.executor.expert_counts
        self.experts = ExpertRecorder(counts, config.expert_distribution_recorder_mode == "per_pass")
        self._shards, self._phases = built.executor.shard_load(), StepPhases()
        self._arrivals = 0
        self._ended: float | None = None  # when the last step ended, if there was more work after it
        self.transfers = PageTransfers(built.executor, built.scheduler)
        self._stalled = False  # whether the last call of `step` could only wait for pages
        self._overlaps = config.overlaps(built.executor.info.device)
        self._launched: tuple[Plan, Ticket] | None = None  # the step whose result has not been read yet

    def add(self, request: Request) -> None:
        """Queues a request. Its `tokens` are the prompt. The engine copies the list and appends to the copy.

        Raises ValueError for a prompt that is empty, too long or outside the vocabulary, for bad
        sampling parameters, and for an id that is in use.
        """
        asked = request.params.speculative
        resolved = self._resolved(asked.or_else(self.speculative_defaults))
        request.params = request.params.replace(speculative=resolved)
        request.params.check(self.vocab_size)
        if request.params.top_k > self.vocab_size:
            request.params = request.params.replace(top_k=-1)
        if not isinstance(request.priority, int):
            raise ValueError(f"priority is {request.priority!r}; it must be a whole number")
        self._check_speculative(asked, resolved)
        request.spec.lossy = request.params.lossy
        request.spec.simulated = self._simulated and self._scheduler.depth.most(request) > 0
        if request.params.constraint is not None and request.grammar is None:
            raise ValueError("the request has a constraint and no grammar compiled from it")
        check_prompt(request, self.context_length, self.vocab_size)
        if request.rid in self._scheduler.by_rid or request.rid in self.transfers.held:
            raise ValueError(f"request id {request.rid!r} is in use")
        request.tokens = list(request.tokens)
        request.num_prompt = n = len(request.tokens)
        request.limit = min(n + request.params.max_tokens, self.context_length)
        request.order, request.arrived = self._arrivals, time.perf_counter()
        self._arrivals += 1
        self._scheduler.add(request)
        self._stalled = False

    def set_speculative_defaults(self, defaults: SpeculativeParams) -> None:
        """Sets the meaning of None in later requests. Where `defaults` has None too, the configuration
        applies. Raises ValueError, and changes nothing, for options that this engine does not support."""
        defaults.check()
        self._check_speculative(defaults, self._resolved(defaults))
        self.speculative_defaults = defaults

    def _resolved(self, asked: SpeculativeParams) -> SpeculativeParams:
        return asked.or_else(self.speculation.defaults)

    def _check_speculative(self, asked: SpeculativeParams, resolved: SpeculativeParams) -> None:
        """Raises ValueError for options that this engine's drafts do not support. Only options that were set
        are checked, thresholds together with the verify mode that would apply."""
        asked = dataclasses.replace(asked, verify=resolved.verify)
        self.speculation.check(asked, lambda field: f"speculative.{field}")

    def step(self) -> list[Output]:
        """Runs one step and returns its outputs. [] if there is nothing to run or no output."""
        self.transfers.changed = False
        lap = TRACE.laps("engine")
        began = self._ended or time.perf_counter()
        launched = self._launched or self._launch(lap, self._executor.awake)
        self._launched, self._stalled = None, launched is None
        if launched is None:
            self._ended = None
            return []
        if self._overlaps and not self.experts.by_step:
            self._launched = self._launch(lap)
        plan, ticket = launched
        result = ticket.result()
        lap("result")
        now = time.perf_counter()
        # Step costs do not include the time in which other groups were late.
        seconds = None if self._ended is None else max(0.0, now - began - result.waits.others)
        outputs = self._scheduler.commit(plan, result, seconds)
        self._phases.stepped(plan, result, now - began)
        self._ended = now if self.must_step() else None
        lap("commit")
        if result.ran:
            stepped(lap, plan, result)
            self.experts.stepped()
            if self._shards is not None:
                self._shards.stepped(idle=not self.has_work())
        if self.config.check_integrity:
            self.check_integrity()
        if self._launched is not None and not self._scheduler.has_work():
            outputs += self.step()  # reads the launched step; all its requests have ended
        return outputs

    def _launch(self, lap: Laps, empty: bool = False) -> tuple[Plan, Ticket] | None:
        """Plans and launches the next step. empty: also if it has no spans."""
        plan = self._scheduler.plan()
        lap("plan")
        if not plan.spans and not empty:
            return None
        ticket = self._executor.launch(plan)
        lap("launch")
        return plan, ticket

    def abort(self, rid: str) -> bool:
        """Ends a request without an output and frees its pages at once. False if there is no such request."""
        self._stalled = False
        return self._scheduler.abort(rid)

    def check(self) -> None:
        """Raises the error that a step would raise, if no step can run any more."""
        self._executor.check()

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def must_step(self) -> bool:
        """Whether `step` has to be called: there is work that does not only wait for pages, or other engines
        that share experts with this one run steps."""
        return self._launched is not None or self._executor.awake or self._scheduler.must_step()

    @property
    def stalled(self) -> bool:
        """Whether a step would have nothing to do until pages arrive or are freed, or requests come or go."""
        return self._stalled and not self.transfers.changed

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    @property
    def wakes(self) -> Wakes | None:
        """See `Executor.wakes`."""
        return self._executor.wakes

    def stats(self) -> EngineStats:
        stats = self._scheduler.snapshot()
        stats.phases = self._phases.totals
        if self._shards is not None:
            stats.sent, stats.shard_rows = self._shards.sent, self._shards.rows
        return stats

    def flush_cache(self) -> bool:
        """Empties the prefix cache. While there are requests, returns False and does nothing."""
        if self.has_work():
            return False
        self._scheduler.kv.flush()
        return True

    def remember(self) -> None:
        """Saves the step costs that automatic depth has learnt, for the next start. Call it at the end."""
        self._remember()

    def check_integrity(self) -> None:
        """Recomputes all bookkeeping from scratch. AssertionError if something differs."""
        self._scheduler.check_integrity()
