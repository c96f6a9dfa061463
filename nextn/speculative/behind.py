"""Positions that the draft layer has not seen: requests that do not draft leave it behind.

Its entry at a position is a function of the target's hidden state there and of the token after it. The states
of the last positions, a window of them, are kept until the request drafts again; then the layer is run
over them before anything is drafted.

A step of requests that decode is kept as a whole, in a ring with a place for each of the last steps: it costs
one copy, however many they are, and no memory that was not there before. They take part in every step, so the
last steps hold their last positions. A prompt's parts may lie many steps apart, so each request's last one is
kept by itself.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nextn.draft import draft_window
from nextn.layers.batch import Span
from nextn.speculative.base import DraftSpan
from nextn.speculative.draft_state import DraftState, Waiting

PIECE = 512  # rows that are caught up in one pass


class Owners:
    """Whose the rows of a step are: of each request so many, one after another. Steps that follow one another
    with the same requests share it."""

    def __init__(self, states: list[DraftState], counts: Sequence[int] | None) -> None:
        """counts: None for a row each."""
        self.states, self.counts = states, counts
        self._places: dict[int, range] | None = None

    def rows(self, state: DraftState) -> range:
        if self._places is None:  # rarely asked for
            self._places, at = {}, 0
            for each, count in zip(self.states, self.counts or [1] * len(self.states), strict=True):
                self._places[id(each)] = range(at, at + count)
                at += count
        return self._places.get(id(state), range(0))


class _Ring:
    """The states of the last steps, each at the place that its number says."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.states = torch.empty(steps, 0, 0)
        self._addresses = list[int]()  # of each place, where rows can be moved as bytes

    def put(self, number: int, hidden: Tensor, rows: Sequence[int]) -> None:
        """These rows of `hidden`."""
        count, at = len(rows), number % self.steps
        if self.states.shape[1] < count:
            self._widen(count, hidden)
        self.states[at, :count] = _rows_of(hidden, rows)

    def put_bytes(self, number: int, address: int, count: int) -> bool:
        """So many bytes from there, once `put` has made room for as many. False: they cannot be moved so."""
        if self._addresses:
            # For a few rows a call of torch takes longer than the copy.
            ctypes.memmove(self._addresses[number % self.steps], address, count)
        return bool(self._addresses)

    def _widen(self, count: int, hidden: Tensor) -> None:
        old, width = self.states, 1 << (count - 1).bit_length()
        self.states = hidden.new_empty(self.steps, width, hidden.shape[1])
        if old.numel():
            self.states[:, : old.shape[1]] = old
        if self.states.device.type == "cpu":
            first, stride = self.states.data_ptr(), self.states[0].nbytes
            self._addresses = [first + i * stride for i in range(self.steps)]

    def take(self, places: Sequence[tuple[int, range]]) -> Tensor:
        """Of each step, by number, these rows."""
        width = self.states.shape[1]
        rows = [n % self.steps * width + row for n, each in places for row in each]
        return self.states.flatten(0, 1)[torch.tensor(rows, device=self.states.device)]


class Behind:
    def __init__(self, page_size: int) -> None:
        self._window = draft_window(page_size)
        self._ring = _Ring(self._window)
        self._steps: deque[Owners] = deque(maxlen=self._window)  # that are in the ring
        self._count = 0  # of all that were put into it; a step's number is how many were before it
        self._last: Owners | None = None  # of the last one, where each has a row
        self._waiting = set[DraftState]()  # of requests of which something is kept

    def keep(self, hidden: Tensor, work: Sequence[DraftSpan]) -> None:
        """Of requests that do not extend in this step. hidden: the step's states, all of them."""
        states = [w.state for w in work]
        last = self._last
        # The same requests with a row each: that follows from which row the last one ends with.
        if last is not None and last.states == states and work[-1].rows[-1] == len(work) - 1:
            self._put(hidden, last, range(len(work)))
            return
        parts: list[DraftSpan] = []
        kept: list[DraftSpan] = []
        for w in work:
            alone = w.state.waiting is None or w.state.waiting.since is None or not w.chosen
            (parts if alone else kept).append(w)
        if kept:
            rows = [row for w in kept for row in w.rows]
            counts = None if len(rows) == len(kept) else [len(w.rows) for w in kept]
            self._put(hidden, Owners([w.state for w in kept], counts), rows)
        for w in parts:
            self._keep_part(hidden, w)

    @property
    def latest(self) -> Owners | None:
        """Of the last step that was kept, where each request has a row; None: they have not."""
        return self._last

    def keep_again(self, owners: Owners | None, address: int, row: int) -> bool:
        """`keep`, of the requests of the last step, with a row each again. owners: `latest` after it, if they
        are the same. address, row: where the states begin, and the bytes of one. False: that cannot be."""
        if owners is None or owners is not self._last:
            return False
        if moved := self._ring.put_bytes(self._count, address, row * len(owners.states)):
            self._count_in(owners)
        return moved

    def _put(self, hidden: Tensor, owners: Owners, rows: Sequence[int]) -> None:
        self._ring.put(self._count, hidden, rows)
        self._count_in(owners)

    def _count_in(self, owners: Owners) -> None:
        self._steps.append(owners)
        self._count += 1
        self._last = owners if owners.counts is None else None

    def _keep_part(self, hidden: Tensor, w: DraftSpan) -> None:
        """Of a prompt, or the first step after one that extended."""
        states = _rows_of(hidden, w.rows[-self._window :])
        before = w.state.waiting
        if before is None:
            self._waiting.add(w.state)
            states = states.clone()
        else:
            assert before.end == w.draft_from + w.start, f"a gap before {w.start}"
            states = torch.cat([before.states, states])
        end = w.draft_from + w.start + len(w.rows)
        # From the next step on, where the prompt is complete.
        since = self._count if w.chosen else None
        w.state.waiting = Waiting(states[-self._window :], end, since)

    def _take(self, w: DraftSpan) -> Tensor | None:
        """What is kept of a request's last positions, up to those of this step; it is kept no longer."""
        waiting = w.state.waiting
        if waiting is None:
            return None
        since = self._count if waiting.since is None else waiting.since
        steps = enumerate(self._steps, self._count - len(self._steps))
        places = [(number, owners.rows(w.state)) for number, owners in steps if number >= since]
        later = sum(len(rows) for _, rows in places)
        w.state.waiting = None
        self._waiting.discard(w.state)
        self._last = None
        parts = [self._ring.take(places)] if later else []
        if waiting.end + later == w.draft_from + w.start:
            parts.insert(0, waiting.states)
        else:  # between the part and the steps are some that are kept no longer
            assert self._count - since > self._window, f"a gap before {w.start}"
        return torch.cat(parts)

    def pieces(self, work: Sequence[DraftSpan]) -> Iterator[tuple[list[DraftSpan], list[Span], Tensor]]:
        """What is kept of these requests, to be run over in this order: whose it is, spans, and the hidden
        states of their rows. It is not kept any longer."""
        owners: list[DraftSpan] = []
        spans: list[Span] = []
        states: list[Tensor] = []
        room = PIECE
        for w in work:
            own = self._take(w) if self._waiting else None
            if own is None:
                continue
            first = w.draft_from + w.start - len(own)  # of the request's own positions
            at = max(0, len(own) - w.start)  # what the drafter will not see
            while at < len(own):
                n = min(room, len(own) - at)
                following = w.request.history[first + at + 1 : first + at + n + 1]
                owners.append(w)
                spans.append(Span(following, first + at - w.draft_from, w.pages))
                states.append(own[at : at + n])
                at, room = at + n, room - n
                if not room:
                    yield owners, spans, torch.cat(states)
                    owners, spans, states, room = [], [], [], PIECE
        if spans:
            yield owners, spans, torch.cat(states)

    def drop(self, state: DraftState) -> None:
        if state.waiting is not None:
            state.waiting = None
            self._waiting.discard(state)
        if not self._waiting:
            self._steps.clear()
            self._last = None

    def forget(self) -> None:
        """What is kept of all requests. The next step of each may leave a gap."""
        for state in list(self._waiting):
            self.drop(state)

    def __len__(self) -> int:
        """Requests of which something is kept."""
        return len(self._waiting)


def _count_up(rows: Sequence[int]) -> bool:
    """Of rows in order: is none left out?"""
    return rows[-1] - rows[0] == len(rows) - 1


def _rows_of(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    """A view where it can be."""
    if _count_up(rows):
        return hidden[rows[0] : rows[-1] + 1]
    return hidden[torch.tensor(rows, device=hidden.device)]
