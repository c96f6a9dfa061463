"""Positions that the draft layer has not seen: requests that do not draft leave it behind.

Its entry at a position is a function of the target's hidden state there and of the token after it. Both are
kept, step by step, until the request drafts again; then they are run over before anything is drafted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nextn.layers.batch import Span
from nextn.speculative.committed import Committed

PIECE = 512  # rows that are caught up in one pass


class _Kept:
    """One request's: positions start .. start + len(following) - 1."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.states: list[tuple[Tensor, int, int]] = []  # rows of what a step left, cut out late
        self.following: list[int] = []


class Behind:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def keep(self, hidden: Tensor, work: Sequence[Committed]) -> None:
        """Of the requests that do not extend in this step, whose hidden states are in `hidden`."""
        later = [w for w in work if not w.extend]
        if not later:
            return
        rows = [row for w in later for row in w.rows]
        if rows == list(range(hidden.shape[0])):
            states = hidden.clone()  # what it lies in is written over
        else:
            states = hidden.index_select(0, torch.tensor(rows, device=hidden.device))
        at = 0
        for w in later:
            kept = self._kept.get(w.rid)
            if kept is None:
                kept = self._kept[w.rid] = _Kept(w.start)
            assert kept.start + len(kept.following) == w.start, f"{w.rid}: a gap before {w.start}"
            first, at = at, at + len(w.rows)
            kept.states.append((states, first, at))
            kept.following += w.following

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
            assert kept.start + len(kept.following) == w.start, f"{w.rid}: a gap before {w.start}"
            own = torch.cat([states[first:last] for states, first, last in kept.states])
            at = 0
            while at < len(kept.following):
                n = min(room, len(kept.following) - at)
                spans.append(Span(kept.following[at : at + n], kept.start + at, w.pages))
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
