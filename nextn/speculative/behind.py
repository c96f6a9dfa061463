"""Positions that the draft layer has not seen: requests that do not draft leave it behind.

Its entry at a position is a function of the target's hidden state there and of the token after it. Both are
kept of the last positions, `DRAFT_WINDOW` at least, until the request drafts again; then they are run over
before anything is drafted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nextn.draft import DRAFT_WINDOW
from nextn.layers.batch import Span
from nextn.speculative.committed import Committed

PIECE = 512  # rows that are caught up in one pass


class _Kept:
    """One request's: the positions up to `end`, in its own count."""

    def __init__(self) -> None:
        self.end = 0
        self.states: deque[tuple[Tensor, int, int]] = deque()  # rows of what a step left, cut out late
        self.following: list[int] = []

    def drop(self, most: int) -> None:
        """Whole steps, as long as `most` positions are left."""
        while (n := self.states[0][2] - self.states[0][1]) <= len(self.following) - most:
            self.states.popleft()
            del self.following[:n]


class Behind:
    def __init__(self, page_size: int) -> None:
        self._most = max(DRAFT_WINDOW, page_size)
        self._kept: dict[str, _Kept] = {}

    def keep(self, hidden: Tensor, work: Sequence[Committed]) -> None:
        """Of the requests that do not extend in this step, whose hidden states are in `hidden`."""
        later = [w for w in work if not w.extend]
        if not later:
            return
        most = self._most
        rows = [row for w in later for row in w.rows[-most:]]
        if rows == list(range(hidden.shape[0])):
            states = hidden.clone()  # what it lies in is written over
        else:
            states = hidden.index_select(0, torch.tensor(rows, device=hidden.device))
        at = 0
        for w in later:
            kept = self._kept.get(w.rid)
            if kept is None:
                kept = self._kept[w.rid] = _Kept()
            elif kept.end != w.draft_from + w.start:
                raise AssertionError(f"{w.rid}: a gap before {w.start}")
            first, at = at, at + min(most, len(w.rows))
            kept.states.append((states, first, at))
            kept.following += w.following[-most:]
            kept.end = w.draft_from + w.start + len(w.following)
            kept.drop(most)

    def pieces(self, work: Sequence[Committed]) -> Iterator[tuple[list[Span], Tensor]]:
        """What is kept of these requests, to be run over in this order: spans, and the hidden states of their
        rows. It is not kept any longer."""
        spans: list[Span] = []
        states: list[Tensor] = []
        room = PIECE
        for w in work:
            kept = self._kept.pop(w.rid, None) if self._kept else None
            if kept is None:
                continue
            assert kept.end == w.draft_from + w.start, f"{w.rid}: a gap before {w.start}"
            own = torch.cat([states[first:last] for states, first, last in kept.states])
            at = max(0, len(kept.following) - w.start)  # what the drafter will not see
            start = w.start - len(kept.following)
            while at < len(kept.following):
                n = min(room, len(kept.following) - at)
                spans.append(Span(kept.following[at : at + n], start + at, w.pages))
                states.append(own[at : at + n])
                at, room = at + n, room - n
                if not room:
                    yield spans, torch.cat(states)
                    spans, states, room = [], [], PIECE
        if spans:
            yield spans, torch.cat(states)

    def drop(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._kept.pop(rid, None)

    def __len__(self) -> int:
        """Requests of which something is kept."""
        return len(self._kept)
