"""An executor whose host does not wait for the device.

Steps in which every request decodes a chain run by `nextn.speculative.device.step`. They are launched before
the result of the previous step has been read. All other steps run as in `Runner`, after the results of all
launched steps have been read.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import torch

from nextn.cutoff import NO_GUESS
from nextn.draft import MAX_DRAFTS, NO_DRAFT, Draft
from nextn.engine.executor import Ticket
from nextn.engine.runner import Runner
from nextn.models.graphs import bucket, most_positions
from nextn.ops.base import align
from nextn.sampling.row_draws import Choosing
from nextn.scheduler.plan import Plan, SpanResult, StepResult
from nextn.speculative.device import columns
from nextn.speculative.device.graphs import OneByOne, StepPasses
from nextn.speculative.device.host_buffers import FreeBuffers, HostBuffers
from nextn.speculative.device.requests import DeviceRequest, Load, make_device_request
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.step import DeviceStep
from nextn.speculative.state import RequestState
from nextn.speculative.verifier import NO_CHOICE
from nextn.speculative.work import StepWork
from nextn.trace import TRACE

DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, MAX_DRAFTS)


class DeviceTicket:
    """most: maximum number of tokens that each span of the plan may commit. buffers: for the results."""

    def __init__(
        self, plan: Plan, requests: Sequence[DeviceRequest], most: Sequence[int], buffers: HostBuffers,
        read: Callable[[DeviceTicket], None],
    ) -> None:  # fmt: skip
        self.plan, self.requests, self.most, self.buffers = plan, requests, most, buffers
        self._read = read
        self.found: StepResult | None = None

    def result(self) -> StepResult:
        if self.found is None:
            lap = TRACE.laps("runner")
            self.buffers.wait()
            lap("wait")
            self._read(self)
        assert self.found is not None
        return self.found


class DeviceRunner(Runner):
    """A `Runner` until `begin_on_device` is called."""

    step: DeviceStep | None = None
    passes: StepPasses

    def begin_on_device(self, step: DeviceStep, passes: StepPasses | None = None) -> None:
        """From now on, steps run on the device if they can. Call it while there are no requests. passes: how
        steps are launched, by default kernel by kernel."""
        assert not self.states
        self.step, self.passes = step, passes or OneByOne(step)
        self._requests: dict[str, DeviceRequest] = {}
        self._free = list(range(len(step.relay.rows) - 1, 0, -1))
        self._under_way: deque[DeviceTicket] = deque()
        self._buffers = FreeBuffers(step)
        # Results may be read in one thread while another launches (`nextn.engine.thread`). No thread holds
        # this lock while it waits for the device, except a launch that has to wait.
        self._lock = threading.RLock()

    def end_on_device(self) -> None:
        """To be called while there are no requests."""
        assert not self.states
        self.step = None

    def add(self, state: RequestState) -> None:
        super().add(state)
        if self.step is not None:
            self._requests[state.rid] = make_device_request(state, self.model.config.vocab_size)

    def drop(self, rid: str) -> None:
        super().drop(rid)
        if self.step is not None and (slot := self._requests.pop(rid).slot):
            self._free.append(slot)  # the next owner writes it after the launched steps

    def launch(self, plan: Plan) -> Ticket:  # type: ignore[override]
        ticket = self.launch_at_once(plan)
        if ticket is not None:
            return ticket
        if self.step is not None and plan.spans:
            with self._lock:
                self.settle()
                for span in plan.spans:
                    self._requests[span.rid].current = False
        return super().launch(plan)

    @torch.inference_mode()
    def launch_at_once(self, plan: Plan) -> DeviceTicket | None:
        """Launches a step that can run on the device, without waiting. Otherwise returns None and does
        nothing."""
        if self.step is None or not plan.spans:
            return None
        with self._lock:
            return self._launch(plan, self.step)

    def _launch(self, plan: Plan, step: DeviceStep) -> DeviceTicket | None:
        lap = TRACE.laps("runner")
        requests = [self._requests[span.rid] for span in plan.spans]
        found = self._shape(plan, requests)
        if found is None:
            return None
        shape, most = found
        load, cuts = Load(step, self.model.config.vocab_size), plan.cutoff is not None
        for request, span, drafts in zip(requests, plan.spans, most, strict=True):
            if not request.slot:
                request.slot = self._free.pop()
            first, pages = span.first_page, request.state.pages
            if span.pages or first < len(pages):
                pages[first:] = array("i", span.pages)
            load.add(request, span, drafts, cuts and span.cut)
            request.current, request.num_steps = True, span.num_steps
            request.unread += 1 + drafts
        if not plan.keep:
            self.drafter.forget()
        lap("prepare")
        shape = self.passes.prepare(shape)
        buffers = self._buffers.take()
        load.send(shape.requests, plan.cutoff, buffers)
        self.passes.run(shape)
        buffers.fetch(shape.requests)
        ticket = DeviceTicket(plan, requests, most, buffers, self._read)
        self._under_way.append(ticket)
        lap("launch")
        return ticket

    def settle(self) -> None:
        """Reads the results of all launched steps."""
        while self._under_way:
            self._under_way[0].result()

    def _shape(self, plan: Plan, requests: Sequence[DeviceRequest]) -> tuple[StepShape, list[int]] | None:
        """(the smallest shape that covers the plan, the maximum number of drafts of each span), or None."""
        assert self.step is not None
        spans, drafts = plan.spans, []
        missing = extends = cuts = longest = num_steps = 0
        for request, span in zip(requests, spans, strict=True):
            if (most := request.most_drafts(span)) is None:
                return None
            drafts.append(most)
            missing += not request.slot
            extends += span.extend
            cuts += span.cut
            if span.num_steps > num_steps:
                num_steps = span.num_steps
            if (end := request.longest + most + span.num_steps) > longest:
                longest = end
        if plan.keep and extends < len(spans):
            return None  # the drafter keeps hidden states
        padded = bucket(len(requests))
        if missing > len(self._free) or padded is None or padded > len(self.step.inputs):
            return None
        drafting = Drafting()
        if extends:
            drafting = Drafting(rounded(num_steps), True, plan.cutoff is not None and cuts > 0)
        choosing = max([request.choosing for request in requests])
        rows = len(requests) + sum(drafts)
        shape = make_shape(padded, rows, drafting, choosing, longest, self.model.row_align)
        return None if shape is None else (shape, drafts)

    def _read(self, ticket: DeviceTicket) -> None:
        """Called when the ticket's step and all earlier steps have run."""
        with self._lock:
            while ticket.found is None:
                first = self._under_way.popleft()
                first.found = _result(first)
                self._buffers.give(first.buffers)


def rounded(num_steps: int) -> int:
    """The depth in a step's shape for this draft depth, rounded up so that there are few shapes.
    rounded(5) == 6."""
    return next(depth for depth in DEPTHS if depth >= num_steps)


def make_shape(
    requests: int, rows: int, drafting: Drafting, choosing: Choosing, longest: int, row_align: int
) -> StepShape | None:
    """The shape of a step. rows, longest: minimum values. None: too many rows for a graph."""
    total = bucket(max(rows, requests))
    if total is None:
        return None
    return StepShape(requests, align(total, row_align), drafting, choosing, most_positions(longest))


def _result(ticket: DeviceTicket) -> StepResult:
    requests, spans, cut = ticket.requests, ticket.plan.spans, ticket.plan.cutoff is not None
    n = len(requests)
    numbers = ticket.buffers.results[:n]
    started, verified, taken, kept, made, depths, failed, over = numbers[:, : columns.RESULTS].T.tolist()
    texts = numbers[:, columns.RESULTS : columns.RESULTS + max(taken)].tolist()
    chains = numbers[:, columns.GUESSES : columns.GUESSES + max(kept)].tolist()
    bins = numbers[:, columns.BINS : columns.BINS + max(made) * cut].tolist()
    results: list[SpanResult] = []
    extended = 0
    for i, (request, span, most) in enumerate(zip(requests, spans, ticket.most, strict=True)):
        request.unread -= 1 + most
        if over[i]:
            results.append(SpanResult([], NO_DRAFT))
            continue
        tokens, draft = texts[i][: taken[i]], NO_DRAFT
        if span.extend:
            extended += taken[i]
        if depths[i]:
            draft = Draft(chains[i][: kept[i]])
            if cut and span.cut:
                draft.bins = bytes(bins[i][: made[i]])
                assert max(draft.bins, default=0) < NO_GUESS
        result = SpanResult(tokens, draft)
        if failed[i]:
            result.error = NO_CHOICE
        results.append(result)
        request.state.commit(result)
    depths.sort()
    passes = tuple([n - bisect_right(depths, step) for step in range(1, depths[-1])])
    decoding, nodes = n - sum(over), sum(verified)
    context = sum([at for at, gone in zip(started, over, strict=True) if not gone])
    return StepResult(results, StepWork(decoding + nodes, extended, passes, decoding, nodes, context))
