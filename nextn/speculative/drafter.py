"""The MTP drafter: keeps the NextN layer's cache true, and chains it to propose the next drafts.

After a step committed m tokens of a request, its NextN layer runs over those m positions with the
target's true hidden states (draft extend), which writes over whatever earlier guesses had left there.
The last of these rows predicts the first draft; each further draft feeds back the layer's own output
and its own last guess, one position on. Nothing here can change a text, only how many drafts hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take


@dataclass(frozen=True, slots=True)
class Committed:
    """What a step settled for one request: positions start .. start + len(following) - 1 are true."""

    start: int
    first_row: int  # row of `hidden` that holds position `start`
    following: Sequence[int]  # following[i]: the token after position start + i
    pages: Sequence[int]
    want: int  # drafts to propose


# (index into the step's requests, drafts so far) per row, logits -> one token per row
ChooseDraft = Callable[[Tensor, Sequence[tuple[int, Sequence[int]]]], list[int]]


class Drafter(Protocol):
    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> list[list[int]]:
        """hidden [T, C] of the target's step -> the drafts of each request, at most `want` long."""


class NoDrafter:
    """Speculation off: the same step, without drafts."""

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> list[list[int]]:
        return [[] for _ in work]


class MTPDrafter:
    def __init__(self, model: Model, pool: KVPool) -> None:
        self.model, self.pool = model, pool

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in work]
        batch = self.model.batch([Span(w.following, w.start, w.pages) for w in work], self.pool.page_size)
        index = [w.first_row + i for w in work for i in range(len(w.following))]
        state = self.model.draft(batch, take(self.model, hidden, index), self.pool)
        # Row of `state` that ends each request's run.
        ends, row = {}, -1
        for i, w in enumerate(work):
            row += len(w.following)
            if w.want:
                ends[i] = row
        depth = 0
        while ends:
            state = take(self.model, state, list(ends.values()))
            tokens = choose(self.model.draft_logits(state), [(i, drafts[i]) for i in ends])
            for i, token in zip(ends, tokens, strict=True):
                drafts[i].append(token)
            depth += 1
            ends = {i: r for r, i in enumerate(ends) if work[i].want > depth}
            if ends:
                spans = [
                    Span(drafts[i][-1:], work[i].start + len(work[i].following) + depth - 1, work[i].pages)
                    for i in ends
                ]
                state = take(self.model, state, list(ends.values()))
                state = self.model.draft(self.model.batch(spans, self.pool.page_size), state, self.pool)
                ends = {i: r for r, i in enumerate(ends)}
        return drafts
