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
from nextn.speculative.committed import Committed

PIECE = 512  # rows that are caught up in one pass


class _Step:
    """states: of all rows of a step, or of those alone that are kept. work: the requests in it."""

    def __init__(self, number: int, hidden: Tensor, work: Sequence[Committed], room: Tensor | None) -> None:
        """room: memory to keep them in; new memory takes ten times as long as the copy."""
        self.number, self.work = number, work
        self.first: list[int] | None = None
        self._places: dict[str, int] | None = None
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

    def of(self, rid: str) -> tuple[Committed, Tensor] | None:
        """The request's part, and its states."""
        if self._places is None:  # rarely asked for
            self._places = {w.rid: i for i, w in enumerate(self.work) if w.chosen and not w.extend}
        place = self._places.get(rid)
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
        self._count = 0
        # Of a request: the last part of its prompt (states, tokens after them, end), and the first step that
        # is of this request and of no other with its id.
        self._prompts: dict[str, tuple[Tensor, Sequence[int], int]] = {}
        self._since: dict[str, int] = {}

    def keep(self, hidden: Tensor, work: Sequence[Committed]) -> None:
        """Of the requests that do not extend in this step, whose hidden states are in `hidden`."""
        since, parts = self._since, 0
        number, self._count = self._count, self._count + 1
        for w in work:
            if w.extend:
                parts += 1
            elif w.rid not in since or not w.chosen:
                self._keep_part(hidden, w)
                parts += 1
        if parts < len(work):
            oldest = self._steps.popleft().states if len(self._steps) == self._most else None
            self._steps.append(_Step(number, hidden, work, oldest))

    def _keep_part(self, hidden: Tensor, w: Committed) -> None:
        """Of a prompt, or the first step after one that extended."""
        rows, following = list(w.rows), list(w.following)
        states = hidden.index_select(0, torch.tensor(rows[-self._most :], device=hidden.device))
        before = self._prompts.get(w.rid)
        if before is not None:
            assert before[2] == w.draft_from + w.start, f"{w.rid}: a gap before {w.start}"
            states, following = torch.cat([before[0], states]), [*before[1], *following]
        end = w.draft_from + w.start + len(w.following)
        self._prompts[w.rid] = states[-self._most :], following[-self._most :], end
        if w.chosen:
            self._since[w.rid] = self._count  # from the next step on: this one is in the part

    def _take(self, w: Committed) -> tuple[Tensor, list[int]] | None:
        """What is kept of a request's last positions, up to those of this step; it is kept no longer."""
        since, prompt = self._since.pop(w.rid, None), self._prompts.pop(w.rid, None)
        if prompt is None:
            return None
        parts, following = [prompt[0]], [*prompt[1]]
        end = prompt[2]
        for step in self._steps:
            part = step.of(w.rid) if since is not None and step.number >= since else None
            if part is None:
                continue
            found, states = part
            if found.draft_from + found.start != end:  # between them are steps that are kept no longer
                parts, following = [], []
            parts.append(states)
            following += found.following
            end = found.draft_from + found.start + len(found.following)
        assert end == w.draft_from + w.start, f"{w.rid}: a gap before {w.start}"
        return torch.cat(parts), following

    def pieces(self, work: Sequence[Committed]) -> Iterator[tuple[list[Span], Tensor]]:
        """What is kept of these requests, to be run over in this order: spans, and the hidden states of their
        rows. It is not kept any longer."""
        spans: list[Span] = []
        states: list[Tensor] = []
        room = PIECE
        for w in work:
            kept = self._take(w) if self._prompts else None
            if kept is None:
                continue
            own, following = kept
            at = max(0, len(following) - w.start)  # what the drafter will not see
            start = w.start - len(following)
            while at < len(following):
                n = min(room, len(following) - at)
                spans.append(Span(following[at : at + n], start + at, w.pages))
                states.append(own[at : at + n])
                at, room = at + n, room - n
                if not room:
                    yield spans, torch.cat(states)
                    spans, states, room = [], [], PIECE
        if spans:
            yield spans, torch.cat(states)

    def drop(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._prompts.pop(rid, None)
            self._since.pop(rid, None)
        if not self._prompts:
            self._steps.clear()

    def __len__(self) -> int:
        """Requests of which something is kept."""
        return len(self._prompts)
