"""Positions that the draft layer has not seen: requests that do not draft leave it behind.

Its entry at a position is a function of the target's hidden state there and of the token after it. Both are
kept of the last positions, `DRAFT_WINDOW` at least, until the request drafts again; then they are run over
before anything is drafted.

A step of requests that decode is kept as a whole: it costs one copy, however many they are. They take part in
every step, so the last steps hold their last positions. A prompt's parts may lie many steps apart, so each
request's last one is kept by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from nextn.draft import DRAFT_WINDOW, MAX_DRAFTS
from nextn.layers.batch import Span
from nextn.speculative.base import DraftSpan
from nextn.speculative.draft_state import DraftState, Waiting

PIECE = 512  # rows that are caught up in one pass


class _Step:
    """states: of all rows of a step, or of those alone that are kept. work: the spans in it."""

    def __init__(self, number: int, hidden: Tensor, work: Sequence[DraftSpan], room: Tensor | None) -> None:
        """room: memory to keep them in; new memory takes ten times as long as the copy."""
        self.number, self.work = number, work
        self.first: list[int] | None = None
        self._places: dict[int, int] | None = None
        if hidden.shape[0] <= 2 * len(work) + MAX_DRAFTS:
            # What `hidden` lies in is written over.
            rows = hidden.shape[0]
            fits = room is not None and room.shape[0] >= rows and room.shape[1:] == hidden.shape[1:]
            self.states = room if room is not None and fits else torch.empty_like(hidden)
            self.states[:rows].copy_(hidden)
            return
        kept = [w for w in work if w.chosen and not w.extend]
        places = [row for w in kept for row in w.rows]
        self.work = kept
        self.first = list(accumulate((len(w.rows) for w in kept), initial=0))
        self.states = hidden.index_select(0, torch.tensor(places, device=hidden.device))

    def of(self, state: DraftState) -> tuple[DraftSpan, Tensor] | None:
        """The request's part, and its hidden states."""
        if self._places is None:  # rarely asked for
            self._places = {id(w.state): i for i, w in enumerate(self.work) if w.chosen and not w.extend}
        place = self._places.get(id(state))
        if place is None:
            return None
        w = self.work[place]
        if self.first is not None:
            return w, self.states[self.first[place] : self.first[place + 1]]
        return w, self.states[list(w.rows)]


class Behind:
    def __init__(self, page_size: int) -> None:
        self._most = max(DRAFT_WINDOW, page_size)
        self._steps: deque[_Step] = deque()
        self._count = 0  # of steps
        self._waiting = 0  # requests of which something is kept

    def keep(self, hidden: Tensor, work: Sequence[DraftSpan]) -> None:
        """Of the requests that do not extend in this step, whose hidden states are in `hidden`."""
        parts = 0
        number, self._count = self._count, self._count + 1
        for w in work:
            if w.extend:
                parts += 1
            elif w.state.waiting is None or w.state.waiting.since is None or not w.chosen:
                self._keep_part(hidden, w)
                parts += 1
        if parts < len(work):
            oldest = self._steps.popleft().states if len(self._steps) == self._most else None
            self._steps.append(_Step(number, hidden, work, oldest))

    def _keep_part(self, hidden: Tensor, w: DraftSpan) -> None:
        """Of a prompt, or the first step after one that extended."""
        rows, following = list(w.rows), list(w.following)
        states = hidden.index_select(0, torch.tensor(rows[-self._most :], device=hidden.device))
        before = w.state.waiting
        if before is None:
            self._waiting += 1
        else:
            assert before.end == w.draft_from + w.start, f"a gap before {w.start}"
            states, following = torch.cat([before.states, states]), [*before.following, *following]
        end = w.draft_from + w.start + len(w.following)
        # From the next step on, where the prompt is complete: this one is in the part.
        since = self._count if w.chosen else None
        w.state.waiting = Waiting(states[-self._most :], following[-self._most :], end, since)

    def _take(self, w: DraftSpan) -> tuple[Tensor, list[int]] | None:
        """What is kept of a request's last positions, up to those of this step; it is kept no longer."""
        waiting = w.state.waiting
        if waiting is None:
            return None
        parts, following, end = [waiting.states], [*waiting.following], waiting.end
        for step in self._steps:
            part = step.of(w.state) if waiting.since is not None and step.number >= waiting.since else None
            if part is None:
                continue
            found, states = part
            if found.draft_from + found.start != end:  # between them are steps that are kept no longer
                parts, following = [], []
            parts.append(states)
            following += found.following
            end = found.draft_from + found.start + len(found.following)
        assert end == w.draft_from + w.start, f"a gap before {w.start}"
        w.state.waiting = None
        self._waiting -= 1
        return torch.cat(parts), following

    def pieces(self, work: Sequence[DraftSpan]) -> Iterator[tuple[list[DraftSpan], list[Span], Tensor]]:
        """What is kept of these requests, to be run over in this order: whose it is, spans, and the hidden
        states of their rows. It is not kept any longer."""
        owners: list[DraftSpan] = []
        spans: list[Span] = []
        states: list[Tensor] = []
        room = PIECE
        for w in work:
            kept = self._take(w) if self._waiting else None
            if kept is None:
                continue
            own, following = kept
            at = max(0, len(following) - w.start)  # what the drafter will not see
            start = w.start - len(following)
            while at < len(following):
                n = min(room, len(following) - at)
                owners.append(w)
                spans.append(Span(following[at : at + n], start + at, w.pages))
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
            self._waiting -= 1
        if not self._waiting:
            self._steps.clear()

    def __len__(self) -> int:
        """Requests of which something is kept."""
        return self._waiting
