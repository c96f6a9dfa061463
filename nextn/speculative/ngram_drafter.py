"""Drafts without a draft layer: what followed the last time that the request's text ended like this.

Keeps an index of each request's tokens (`ngram`) and runs nothing. It has a guess only where a text says
again what it said before; such drafts cost no more than their verification.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nextn.draft import NO_DRAFT, Draft
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import ChooseDraft, Drafted
from nextn.speculative.ngram import NGramIndex


class NGramDrafter:
    def __init__(self) -> None:
        self._indexes: dict[str, NGramIndex] = {}

    def forget(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._indexes.pop(rid, None)

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        return Drafted([self.guess(w)[0] if w.want else NO_DRAFT for w in work])

    def guess(self, work: Committed) -> tuple[Draft, int]:
        """After what the step chose, which the history does not have yet: a draft, and how many tokens of
        suffix it rests on, 0 if there is none."""
        index = self._indexes.get(work.rid)
        if index is None:
            index = self._indexes[work.rid] = NGramIndex()
        index.extend(work.history[len(index.tokens) :])
        index.extend(work.chosen)
        length, at = index.find()
        return Draft(index.following(at, work.want)) if length else NO_DRAFT, length
