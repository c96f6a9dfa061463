"""The executor of a model on a device that the host need not wait for.

Steps in which every request decodes a chain are those of `nextn.speculative.device.step`, launched without
reading the one before. All others run as in `Runner`, once what is under way has been read.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nextn.cutoff import NO_GUESS
from nextn.draft import MAX_DRAFTS, NO_DRAFT, Draft
from nextn.engine.executor import Ticket
from nextn.engine.runner import Runner
from nextn.models.graphs import bucket, most_positions
from nextn.ops.base import align
from nextn.sampling.row_draws import Choosing
from nextn.scheduler.plan import Plan, SpanPlan, SpanResult, StepResult
from nextn.speculative.device import columns
from nextn.speculative.device.graphs import OneByOne, StepPasses
from nextn.speculative.device.seats import Load, Seat, make_seat
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.step import DeviceStep
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import NO_CHOICE
from nextn.speculative.work import StepWork
from nextn.trace import TRACE

DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, MAX_DRAFTS)


class Launched(NamedTuple):
    """A span of a step under way. tokens: that it may commit, at most."""

    seat: Seat
    span: SpanPlan
    tokens: int


class DeviceTicket:
    """numbers: where the results arrive on the host. wait: for them to be there."""

    def __init__(
        self, spans: Sequence[Launched], gated: bool, numbers: Tensor, wait: Callable[[], Any],
        read: Callable[[DeviceTicket], None],
    ) -> None:  # fmt: skip
        self.spans, self.gated, self.numbers, self.wait = spans, gated, numbers, wait
        self._read = read
        self.found: StepResult | None = None

    def result(self) -> StepResult:
        if self.found is None:
            lap = TRACE.laps("runner")
            self.wait()
            lap("wait")
            self._read(self)
        assert self.found is not None
        return self.found


class DeviceRunner(Runner):
    """A `Runner` until `begin_on_device` is called."""

    step: DeviceStep | None = None
    passes: StepPasses

    def begin_on_device(self, step: DeviceStep, passes: StepPasses | None = None) -> None:
        """From now on steps run there where they can. To be called while there are no requests. passes: by
        default kernel by kernel."""
        assert not self.states
        self.step, self.passes = step, passes or OneByOne(step)
        self._seats: dict[str, Seat] = {}
        self._free = list(range(len(step.relay.rows) - 1, 0, -1))
        self._under_way: deque[DeviceTicket] = deque()
        # Results may be read in one thread while another launches (`nextn.engine.thread`). Nobody waits for
        # the device with it, but a launch that has to.
        self._lock = threading.RLock()

    def end_on_device(self) -> None:
        """To be called while there are no requests."""
        assert not self.states
        self.step = None

    def add(self, state: RequestState) -> None:
        super().add(state)
        if self.step is not None:
            self._seats[state.rid] = make_seat(state, self.model.config.vocab_size)

    def drop(self, rid: str) -> None:
        super().drop(rid)
        if self.step is not None and (slot := self._seats.pop(rid).slot):
            self._free.append(slot)  # who takes it writes it after the steps under way

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Ticket:  # type: ignore[override]
        if self.step is None or not plan.spans:
            return super().launch(plan)
        with self._lock:
            return self._launch(plan, self.step)

    def _launch(self, plan: Plan, step: DeviceStep) -> Ticket:
        lap = TRACE.laps("runner")
        seats = [self._seats[span.rid] for span in plan.spans]
        shape = self._shape(plan, seats)
        if shape is None:
            self.settle()
            for seat in seats:
                seat.true = False
            return super().launch(plan)
        load = Load(step, self.model.config.vocab_size)
        launched = []
        for seat, span in zip(seats, plan.spans, strict=True):
            seat.slot = seat.slot or self._free.pop()
            seat.state.pages[span.first_page :] = array("i", span.pages)
            most = seat.most_drafts(span)
            load.add(seat, span, most, span.cut and plan.cutoff is not None)
            seat.true, seat.num_steps = True, span.num_steps
            seat.unread += 1 + most
            launched.append(Launched(seat, span, 1 + most))
        if not plan.keep:
            self.drafter.forget()
        lap("prepare")
        self.passes.prepare(shape)
        load.send(shape.requests, plan.cutoff)
        self.passes.run(shape)
        ticket = DeviceTicket(launched, plan.cutoff is not None, *self._fetch(len(launched)), self._read)
        self._under_way.append(ticket)
        lap("launch")
        return ticket

    def settle(self) -> None:
        """Reads all that is under way."""
        while self._under_way:
            self._under_way[0].result()

    def _shape(self, plan: Plan, seats: Sequence[Seat]) -> StepShape | None:
        """The smallest shape that serves the plan; None if none does."""
        assert self.step is not None
        spans, extends = plan.spans, any(span.extend for span in plan.spans)
        if plan.keep and not all(span.extend for span in spans):
            return None  # the drafter keeps hidden states
        missing = rows = longest = 0
        for seat, span in zip(seats, spans, strict=True):
            if not seat.takes(span):
                return None
            most = seat.most_drafts(span)
            missing += not seat.slot
            rows += 1 + most
            longest = max(longest, seat.longest + most + span.num_steps)
        requests = bucket(len(seats))
        if missing > len(self._free) or requests is None or requests > len(self.step.inputs):
            return None
        drafting = Drafting()
        if extends:
            gated = plan.cutoff is not None and any(span.cut for span in spans)
            drafting = Drafting(rounded(max(span.num_steps for span in spans)), True, gated)
        choosing = max(seat.choosing for seat in seats)
        return make_shape(requests, rows, drafting, choosing, longest, self.model.row_align)

    def _fetch(self, requests: int) -> tuple[Tensor, Callable[[], Any]]:
        """Begins to copy the results of a step to the host."""
        assert self.step is not None
        results = self.step.results[:requests]
        if not results.is_cuda:
            return results.clone(), lambda: None
        numbers = torch.empty(results.shape, dtype=results.dtype, pin_memory=True)
        numbers.copy_(results, non_blocking=True)
        there = torch.cuda.Event()
        there.record()
        return numbers, there.synchronize

    def _read(self, ticket: DeviceTicket) -> None:
        """The ticket's step has run, and so have those before it."""
        with self._lock:
            while ticket.found is None:
                first = self._under_way.popleft()
                first.found = _result(first)


def rounded(num_steps: int) -> int:
    """The depth that a step's code has for drafts of so many steps, so that few differ. rounded(5) == 6."""
    return next(depth for depth in DEPTHS if depth >= num_steps)


def make_shape(
    requests: int, rows: int, drafting: Drafting, choosing: Choosing, longest: int, row_align: int
) -> StepShape | None:
    """rows, longest: at least so many. None: too many rows for a graph."""
    total = bucket(max(rows, requests))
    if total is None:
        return None
    return StepShape(requests, align(total, row_align), drafting, choosing, most_positions(longest))


def _result(ticket: DeviceTicket) -> StepResult:
    results = []
    rows = extended = decoding = nodes = context = 0
    depths = []
    for launched, line in zip(ticket.spans, ticket.numbers.tolist(), strict=True):
        launched.seat.unread -= launched.tokens
        state = launched.seat.state
        if line[columns.OVER]:
            results.append(SpanResult([], NO_DRAFT))
            continue
        count, made, depth = line[columns.TAKEN], line[columns.MADE], line[columns.DEPTH]
        tokens = line[columns.RESULTS : columns.RESULTS + count]
        decoding += 1
        rows += 1 + line[columns.VERIFIED]
        nodes += line[columns.VERIFIED]
        context += line[columns.STARTED]
        extended += count * launched.span.extend
        depths.append(depth)
        draft = NO_DRAFT
        if depth:
            at = columns.RESULTS + 1 + MAX_DRAFTS
            guesses = line[at : at + line[columns.KEPT]]
            bins = line[at + MAX_DRAFTS : at + MAX_DRAFTS + made]
            assert all(0 <= n < NO_GUESS for n in bins)
            cut = ticket.gated and launched.span.cut
            draft = Draft(guesses, bins=bytes(bins) if cut else b"")
        error = NO_CHOICE if line[columns.FAILED] else None
        results.append(SpanResult(tokens, draft, error=error))
        state.commit(results[-1])
    passes = [sum(d > step for d in depths) for step in range(1, max(depths, default=0))]
    return StepResult(results, StepWork(rows, extended, tuple(passes), decoding, nodes, context))
