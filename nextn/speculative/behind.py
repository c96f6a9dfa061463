"""Hidden states of positions over which the draft layer has not run, because the request made no drafts.

The layer's entry at a position is a function of the target's hidden state there and of the next token. The
states of a window of last positions are kept until the request drafts again. Then the layer first runs over
these positions.

The states of decoding requests are kept for a whole step, in a ring buffer with a place for each of the last
steps. This takes one copy per step for all requests, and no new memory. Decoding requests are in every step,
so the last steps contain their last positions. The chunks of a prompt may be many steps apart, so the states
of each request's last chunk are kept separately.
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

PIECE = 512  # maximum rows of a pass that catches up


class Owners:
    """Which request each row of a step belongs to. Rows of a request are consecutive. Consecutive steps with
    the same requests share this object."""

    def __init__(self, states: list[DraftState], counts: Sequence[int] | None) -> None:
        """counts: number of rows of each request; None: one row each."""
        self.states, self.counts = states, counts
        self._places: dict[int, range] | None = None

    def rows(self, state: DraftState) -> range:
        if self._places is None:  # rarely needed
            self._places, at = {}, 0
            for each, count in zip(self.states, self.counts or [1] * len(self.states), strict=True):
                self._places[id(each)] = range(at, at + count)
                at += count
        return self._places.get(id(state), range(0))


class _Ring:
    """The states of the last steps. A step with number n is at place n % steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.states = torch.empty(steps, 0, 0)
        self._addresses = list[int]()  # address of each place, if rows can be copied as bytes

    def put(self, number: int, hidden: Tensor, rows: Sequence[int]) -> None:
        """Stores these rows of `hidden`."""
        count, at = len(rows), number % self.steps
        if self.states.shape[1] < count:
            self._widen(count, hidden)
        self.states[at, :count] = _rows_of(hidden, rows)

    def put_bytes(self, number: int, address: int, count: int) -> bool:
        """Copies `count` bytes from an address. `put` has made room before. False if this is not possible."""
        if self._addresses:
            # For a few rows, a call of torch takes longer than the copy itself.
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
        """Returns rows of steps: (number of the step, rows)."""
        width = self.states.shape[1]
        rows = [n % self.steps * width + row for n, each in places for row in each]
        return self.states.flatten(0, 1)[torch.tensor(rows, device=self.states.device)]


class Behind:
    def __init__(self, page_size: int) -> None:
        self._window = draft_window(page_size)
        self._ring = _Ring(self._window)
        self._steps: deque[Owners] = deque(maxlen=self._window)  # the steps in the ring
        self._count = 0  # number of steps ever put into the ring; the first one has number 0
        self._last: Owners | None = None  # the last step, if each request has one row in it
        self._waiting = set[DraftState]()  # the requests with kept states

    def keep(self, hidden: Tensor, work: Sequence[DraftSpan]) -> None:
        """Keeps the states of requests that do not extend in this step. hidden: all states of the step."""
        states = [w.state for w in work]
        last = self._last
        # The last row's number shows whether each of these requests has one row.
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
        """The owners of the last step that was kept, if each request had one row in it."""
        return self._last

    def keep_again(self, owners: Owners | None, address: int, row: int) -> bool:
        """A faster `keep` for the same requests as in the last step, with one row each. owners: `latest`
        after that step. address: where the states begin. row: bytes of a row. False if it is not possible."""
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
        """Keeps the states of a prompt chunk, or of the first step after one that extended."""
        states = _rows_of(hidden, w.rows[-self._window :])
        before = w.state.waiting
        if before is None:
            self._waiting.add(w.state)
            states = states.clone()
        else:
            assert before.end == w.draft_from + w.start, f"a gap before {w.start}"
            states = torch.cat([before.states, states])
        end = w.draft_from + w.start + len(w.rows)
        # If the prompt is complete, the ring keeps the states from the next step on.
        since = self._count if w.chosen else None
        w.state.waiting = Waiting(states[-self._window :], end, since)

    def _take(self, w: DraftSpan) -> Tensor | None:
        """Removes and returns the states of a request's last positions, before those of this step."""
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
        else:  # the ring no longer has the steps directly after the separately kept part
            assert self._count - since > self._window, f"a gap before {w.start}"
        return torch.cat(parts)

    def pieces(self, work: Sequence[DraftSpan]) -> Iterator[tuple[list[DraftSpan], list[Span], Tensor]]:
        """Removes and yields what is kept of these requests, in the order in which the layer must run: the
        owner of each span, the spans, and the hidden states of their rows."""
        owners: list[DraftSpan] = []
        spans: list[Span] = []
        states: list[Tensor] = []
        room = PIECE
        for w in work:
            own = self._take(w) if self._waiting else None
            if own is None:
                continue
            first = w.draft_from + w.start - len(own)  # position in the request
            at = max(0, len(own) - w.start)  # positions before the drafter's window
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
        """Drops the kept states of all requests. After this, positions may be skipped."""
        for state in list(self._waiting):
            self.drop(state)

    def __len__(self) -> int:
        """Number of requests with kept states."""
        return len(self._waiting)


def _rows_of(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows, in ascending order, as a view if possible."""
    if rows[-1] - rows[0] == len(rows) - 1:  # no gap
        return hidden[rows[0] : rows[-1] + 1]
    return hidden[torch.tensor(rows, device=hidden.device)]
