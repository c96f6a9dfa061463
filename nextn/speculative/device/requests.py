"""What the host keeps of each request, and the data that is sent to the device before a step runs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.sampling.penalties import penalized
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.columns import INPUTS
from nextn.speculative.device.host_buffers import HostBuffers
from nextn.speculative.device.relay import ENDS, WIDTH, Start, choosing_of, relay_row
from nextn.speculative.device.step import DeviceStep
from nextn.speculative.state import RequestState


class PlannedSpan(Protocol):
    """The fields of `nextn.scheduler.plan.SpanPlan` that are used here."""

    @property
    def start(self) -> int: ...
    @property
    def known(self) -> int: ...
    @property
    def draft(self) -> Draft: ...
    @property
    def chooses(self) -> bool: ...
    @property
    def first_page(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def scores(self) -> range: ...
    @property
    def extend(self) -> bool: ...
    @property
    def draft_from(self) -> int: ...
    @property
    def ahead(self) -> bool: ...
    @property
    def most_drafts(self) -> int: ...


@dataclass(slots=True, eq=False)
class DeviceRequest:
    """What the host keeps of a request. slot: its row of the relay; 0: none yet. fits: whether steps on the
    device support the request. current: whether its row and page table on the device are up to date. unread:
    maximum number of tokens that launched, unread steps may have committed. num_steps: depth of the draft
    that the last of these makes."""

    state: RequestState
    choosing: Choosing
    fits: bool
    slot: int = 0
    current: bool = False
    unread: int = 0
    num_steps: int = 0

    @property
    def longest(self) -> int:
        """Maximum number of committed tokens."""
        state = self.state
        have, limit = len(state.history) + self.unread, state.limit
        return have if have < limit else limit

    def most_drafts(self, span: PlannedSpan) -> int | None:
        """Maximum nodes of its draft. None: a step on the device cannot run this span."""
        if not (span.ahead and self.current):
            if not self._takes(span):
                return None
            if not span.ahead:
                return len(span.draft.tokens)
            return min(span.most_drafts, len(self.state.proposed.tokens))
        # The previous step ran on the device, so the request fits, and continues to fit.
        if span.extend and span.draft_from >= len(self.state.history):
            return None
        most, known = span.most_drafts, self.num_steps
        return most if most < known else known

    def _takes(self, span: PlannedSpan) -> bool:
        state, draft = self.state, span.draft
        have = len(state.history)
        return (
            self.fits
            and span.chooses
            and (span.ahead or (span.known == 1 and span.start == have - 1))
            and draft.parents is None
            and not draft.forced
            and not span.scores
            and (not span.extend or (state.drafting.waiting is None and span.draft_from < have))
            and not penalized(state.params, have - state.num_prompt)
        )


def make_device_request(state: RequestState, vocabulary: int) -> DeviceRequest:
    params = state.params
    fits = params.tokens_alone and state.grammar is None and len(state.end_ids) <= ENDS
    return DeviceRequest(state, choosing_of(params, vocabulary), fits)


class Load:
    """The data sent to the device for a step: its inputs, and rows and pages of some requests."""

    def __init__(self, step: DeviceStep, vocabulary: int) -> None:
        self.step, self.vocabulary = step, vocabulary
        self.inputs: list[int] = []
        self.slots: list[int] = []
        self.rows: list[np.ndarray] = []
        self.places: list[int] = []
        self.pages: list[int] = []

    def add(self, request: DeviceRequest, span: PlannedSpan, most: int, cut: bool) -> None:
        """Adds a span; its request's state already has the span's pages. most: maximum number of drafts."""
        state, current = request.state, request.current
        self.inputs += request.slot, span.num_steps if span.extend else -1, most, cut, span.draft_from
        if not (current and span.ahead):
            start = _start(state, span, most)
            row = relay_row(start, state.limit, state.params, sorted(state.end_ids), self.vocabulary)
            self.slots.append(request.slot)
            self.rows.append(row)
        first, end = span.first_page if current else 0, len(state.pages)
        if first < end:
            at = request.slot * self.step.relay.most_pages
            self.places += range(at + first, at + end)
            self.pages += state.pages[first:]

    def send(self, requests: int, cutoff: Cutoff | None, buffers: HostBuffers) -> None:
        """Begins to copy it to the device. requests: number of requests with padding. buffers: the step's."""
        places, pages = self.places, self.pages
        if self.slots or len(places) > requests:
            self._send_more(buffers)
            places, pages = [], []
        none = [0] * (requests - len(places))
        idle = [0] * (requests * INPUTS - len(self.inputs))
        buffers.inputs[: requests * INPUTS] = array("i", self.inputs + idle)
        buffers.places[:requests] = array("q", places + none)
        buffers.pages[:requests] = array("i", pages + none)
        buffers.cutoff[:] = cutoff.numbers if cutoff else 0.0
        buffers.send()

    def _send_more(self, buffers: HostBuffers) -> None:
        n, m = len(self.slots), len(self.places)
        more = buffers.room(n + m + (n * WIDTH + m + 1) // 2)
        numbers = more.numpy()
        numbers[: n + m] = self.slots + self.places
        words = numbers[n + m :].view(np.int32)
        for i, row in enumerate(self.rows):
            words[i * WIDTH : (i + 1) * WIDTH] = row
        words[n * WIDTH : n * WIDTH + m] = self.pages
        on = more.to(self.step.inputs.device, non_blocking=True)
        rest = on[n + m :].view(torch.int32)
        if n:
            self.step.relay.write(on[:n], rest[: n * WIDTH])
        if m:
            self.step.relay.write_pages(on[n : n + m], rest[n * WIDTH : n * WIDTH + m])


def _start(state: RequestState, span: PlannedSpan, most: int) -> Start:
    """Where a request continues, if its last step has been read."""
    have = len(state.history)
    draft: Sequence[int] = span.draft.tokens
    if span.ahead:
        draft = state.proposed.cut(most, max(0, state.limit - have - 1)).tokens
    return Start(have, state.history[-1], draft, span.ahead and state.ended)
