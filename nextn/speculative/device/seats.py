"""Which requests have a row of the relay, what the host knows of it, and what is sent to the device before a
step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.draft import Draft
from nextn.sampling.penalties import penalized
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.columns import INPUTS
from nextn.speculative.device.gate import NUMBERS, cutoff_numbers
from nextn.speculative.device.relay import ENDS, WIDTH, Start, choosing_of, relay_row
from nextn.speculative.device.step import DeviceStep
from nextn.speculative.state import RequestState


class PlannedSpan(Protocol):
    """What matters here of `nextn.scheduler.plan.SpanPlan`."""

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
class Seat:
    """slot: of the relay; 0: none yet. fits: may steps on the device serve the request? True: is its row what
    the last step left, its page table up to date? unread: tokens that steps under way may have committed, at
    most. num_steps: of the draft that the last of them makes."""

    state: RequestState
    choosing: Choosing
    fits: bool
    slot: int = 0
    true: bool = False
    unread: int = 0
    num_steps: int = 0

    @property
    def longest(self) -> int:
        """Committed tokens, at most."""
        return min(len(self.state.history) + self.unread, self.state.limit)

    def takes(self, span: PlannedSpan) -> bool:
        """Is this a span that a step on the device serves as any other would?"""
        state = self.state
        have, draft = len(state.history), span.draft
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

    def most_drafts(self, span: PlannedSpan) -> int:
        """Nodes of its draft, at most."""
        if not span.ahead:
            return len(span.draft.tokens)
        known = self.num_steps if self.true else len(self.state.proposed.tokens)
        return min(span.most_drafts, known)


def make_seat(state: RequestState, vocabulary: int) -> Seat:
    params = state.params
    fits = params.tokens_alone and state.grammar is None and len(state.end_ids) <= ENDS
    return Seat(state, choosing_of(params, vocabulary), fits)


class Load:
    """What is sent to the device for a step: its inputs, and, of some requests, rows and pages."""

    def __init__(self, step: DeviceStep, vocabulary: int) -> None:
        self.step, self.vocabulary = step, vocabulary
        self.inputs: list[int] = []
        self.slots: list[int] = []
        self.rows: list[np.ndarray] = []
        self.places: list[int] = []
        self.pages: list[int] = []

    def add(self, seat: Seat, span: PlannedSpan, most: int, cut: bool) -> None:
        """A span; its request's state has the span's pages. most: drafts."""
        state = seat.state
        self.inputs += seat.slot, span.num_steps if span.extend else -1, most, cut, span.draft_from
        first = span.first_page
        if not (span.ahead and seat.true):
            start = _start(state, span, most)
            row = relay_row(start, state.limit, state.params, sorted(state.end_ids), self.vocabulary)
            self.slots.append(seat.slot)
            self.rows.append(row)
        if not seat.true:
            first = 0
        if first < len(state.pages):
            at = seat.slot * self.step.relay.most_pages
            self.places += range(at + first, at + len(state.pages))
            self.pages += state.pages[first:]

    def send(self, requests: int, cutoff: Cutoff | None) -> None:
        """requests: of the step, with those that fill it up. One copy, which the host does not wait for."""
        n, m = len(self.slots), len(self.places)
        inputs = np.zeros(requests * INPUTS, np.int32)
        inputs[: len(self.inputs)] = self.inputs
        numbers = np.array(cutoff_numbers(cutoff) if cutoff else [0.0] * NUMBERS, np.float32)
        some = (np.array(each, np.int32) for each in (self.slots, self.places, self.pages))
        slots, places, pages = some
        rows = np.concatenate(self.rows) if n else slots
        packed = np.concatenate((inputs, numbers.view(np.int32), slots, rows, places, pages))
        on = _sent(torch.from_numpy(packed), self.step.inputs.device)
        parts = on.split((len(inputs), NUMBERS, n, n * WIDTH, m, m))
        self.step.inputs[:requests] = parts[0].view(requests, INPUTS)
        self.step.cutoff.copy_(parts[1].view(torch.float32))
        if n:
            self.step.relay.write(parts[2].long(), parts[3])
        if m:
            self.step.relay.write_pages(parts[4].long(), parts[5])


def _start(state: RequestState, span: PlannedSpan, most: int) -> Start:
    """Where a request goes on whose last step has been read."""
    have = len(state.history)
    draft: Sequence[int] = span.draft.tokens
    if span.ahead:
        draft = state.proposed.cut(most, max(0, state.limit - have - 1)).tokens
    return Start(have, state.history[-1], draft, span.ahead and state.ended)


def _sent(packed: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return packed
    return packed.pin_memory().to(device, non_blocking=True)
