"""Drafts from n-grams where these have held more often than the NextN layer's, from that layer elsewhere.

A request's n-grams guess in every step, as that costs nothing, and are judged by the tokens that came,
drafted or not; the layer is judged by what it drafted. Where n-grams draft, the layer only takes in the
committed tokens: its cache stays true, and the passes for its guesses are saved.

vLLM has discussed the like (issue 18633: n-grams wherever they match); Arctic Inference takes its suffix
tree's draft where that expects more tokens than a threshold. Here the two are weighed by what held.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from nextn.draft import Draft
from nextn.speculative.committed import Committed
from nextn.speculative.drafter import ChooseDraft, Drafted, Drafter
from nextn.speculative.ngram_drafter import NGramDrafter
from nextn.speculative.trust import Trust

NEXTN = 0  # as a source; n-grams have their length


class MixedDrafter:
    def __init__(self, nextn: Drafter) -> None:
        self.nextn, self.ngrams, self.trust = nextn, NGramDrafter(), Trust()
        self.guesses: dict[str, dict[int, Sequence[int]]] = {}  # by request and source: of the step before

    def forget(self, rids: Sequence[str]) -> None:
        self.nextn.forget(rids)
        self.ngrams.forget(rids)
        for rid in rids:
            self.trust.forget(rid)
            self.guesses.pop(rid, None)

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        found: dict[int, Draft] = {}
        for i, w in enumerate(work):
            if not w.chosen:
                continue  # amid a prompt
            for source, guess in self.guesses.pop(w.rid, {}).items():
                self.trust.learn(w.rid, source, guess, w.chosen)
            if not w.want:
                continue
            draft, length = self.ngrams.guess(w)
            if length:
                self.guesses[w.rid] = {length: draft.tokens}
                if self.trust.rate(w.rid, length) >= self.trust.rate(w.rid, NEXTN):
                    found[i] = draft
        rest = [dataclasses.replace(w, want=0) if i in found else w for i, w in enumerate(work)]
        made = self.nextn.propose(hidden, rest, choose)
        for w, draft in zip(rest, made.drafts, strict=True):
            if w.want:
                self.guesses.setdefault(w.rid, {})[NEXTN] = draft.tokens
        return made._replace(drafts=[found.get(i, draft) for i, draft in enumerate(made.drafts)])
